"""The flags of import-onnx: what the graph is fed, which output is taken, and how values may be written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from service.model.bundle import load_bundle
from tests.training.graphs.foreign.importing import (
    ToInput,
    bundle_answers,
    channels_first,
    channels_last,
    file_answers,
    images_for,
    imported,
    probabilities,
    run_import,
)
from tests.training.graphs.foreign.small_graphs import CLASSES, SIDE, Net, ending, plain
from training.cli.main import main
from training.cli.reading import read_labels
from training.graphs.foreign.classifier import Reading, read_classifier

HALF = (0.5, 0.5, 0.5)


def caffe(images: np.ndarray) -> np.ndarray:
    """Blue, green, red of 0 to 255, less the mean."""
    return (images[..., ::-1] - np.array([104.0, 117, 123])).astype(np.float32).transpose(0, 3, 1, 2)


def lite(images: np.ndarray) -> np.ndarray:
    return ((images - 127.0) / 128).astype(np.float32).transpose(0, 3, 1, 2)


def centred(images: np.ndarray) -> np.ndarray:
    return (images / 127.5 - 1).astype(np.float32).transpose(0, 3, 1, 2)


def raw(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32).transpose(0, 3, 1, 2)


PIXELS: dict[str, tuple[list[str], ToInput]] = {
    "as the help writes them": (["--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225"], channels_first),
    "three values in a row": (
        ["--mean", "0.485", "0.456", "0.406", "--std", "0.229", "0.224", "0.225"],
        channels_first,
    ),
    "one for all": (["--mean", "0.5", "--std", "0.5"], centred),
    "0 to 255": (["--range", "255"], raw),
    "0 to 255, bgr": (["--range", "255", "--mean", "104,117,123", "--channels", "bgr"], caffe),
    "(x - 127) / 128": (["--range", "255", "--mean", "127", "--std", "128"], lite),
}


@pytest.mark.parametrize("kind", PIXELS)
def test_pixels_arrive_as_the_flags_say(tmp_path: Path, photos: Path, kind: str) -> None:
    """Range, mean, standard deviation and order of channels, in every way of writing them."""
    flags, to_input = PIXELS[kind]
    path = plain(tmp_path / "model.onnx")
    bundle, _ = imported(path, photos, tmp_path / "models" / "m" / "1", *flags)
    images = images_for(bundle)
    expected = file_answers(path, images, to_input)
    np.testing.assert_allclose(bundle_answers(bundle, images), expected, atol=1e-4 * np.abs(expected).max())


def test_odin_perturbs_a_usual_range_whatever_the_graph_takes(tmp_path: Path, photos: Path) -> None:
    """ε is a step of the normalised image: a graph of 0 to 255 pixels must not see a 255th of it."""
    path = plain(tmp_path / "model.onnx")
    steps = []
    for version, flags in enumerate((["--range", "255"], ["--range", "255", "--std", "57"]), 1):
        bundle, _ = imported(path, photos, tmp_path / "models" / "m" / str(version), *flags)
        from service.model.session import open_session

        images = images_for(bundle)
        session = open_session(bundle, "perturbed", "cpu", 1)
        session = type(session)(
            session.runtime, "cpu", session.providers, session.outputs, {"epsilon": np.array(0.5, np.float32)}
        )
        answers = session.run(images)
        steps.append(np.abs(answers["logits_preprocessed"] - answers["logits"]).max() / np.abs(answers["logits"]).max())
    assert steps[0] > 0.2 * steps[1] > 0


def test_any_size_is_224_unless_the_user_says(tmp_path: Path, photos: Path) -> None:
    """A graph that takes every size gets --size, and a note where the usual size was taken."""
    path = plain(tmp_path / "model.onnx", image=("N", 3, "H", "W"))
    said = run_import(path, photos, tmp_path / "models" / "m" / "1", "--size", "20x16")
    size = load_bundle(tmp_path / "models" / "m" / "1").manifest.input
    assert (size.width, size.height) == (20, 16)
    assert "--size" not in said
    notes: list[str] = []
    assert read_classifier(path, CLASSES, Reading(), tmp_path, notes).width == 224
    assert any("--size changes it" in note for note in notes)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_first_layers_tell_the_order_of_axes(tmp_path: Path, photos: Path, layout: str) -> None:
    """Where no axis has a fixed size, the Transpose before the first Conv, or that Conv, tells them apart."""
    net = Net()
    pixels = net.op("Transpose", "pixels_in", perm=[0, 3, 1, 2]) if layout == "nhwc" else "pixels_in"
    path = net.save(tmp_path / "model.onnx", (net.logits(pixels), ["N", CLASSES]), image=tuple("NABC"))
    bundle, said = imported(path, photos, tmp_path / "models" / "m" / "1", "--size", "14x12")
    assert f"read the image as {layout}" in said
    images = images_for(bundle)
    expected = file_answers(path, images, channels_last if layout == "nhwc" else channels_first)
    np.testing.assert_allclose(bundle_answers(bundle, images), expected, rtol=1e-4, atol=1e-4)


def test_one_of_several_outputs_is_taken_by_its_fit_or_by_name(tmp_path: Path, photos: Path) -> None:
    """The only output with a value for each label is found; of two that fit, --output names one."""
    net = Net()
    hidden = net.features("pixels_in")
    logits = net.head(net.op("Flatten", hidden))
    shares = net.op("Softmax", logits, axis=1)
    shapes = {hidden: ["N", 4, 1, 1], logits: ["N", CLASSES], shares: ["N", CLASSES]}
    only_one = net.save(tmp_path / "one.onnx", (hidden, shapes[hidden]), (logits, shapes[logits]))
    both = net.save(tmp_path / "both.onnx", (logits, shapes[logits]), (shares, shapes[shares]))
    bundle, said = imported(only_one, photos, tmp_path / "models" / "m" / "1")
    assert f"output '{logits}'" in said
    images = images_for(bundle)
    expected = probabilities(file_answers(only_one, images, output=logits))
    with pytest.raises(Exception, match=rf"'{logits}' \[N,3\], '{shares}' \[N,3\].*--output NAME"):
        run_import(both, photos, tmp_path / "models" / "m" / "2")
    for version, name in enumerate((logits, shares), 2):
        bundle, _ = imported(both, photos, tmp_path / "models" / "m" / str(version), "--output", name)
        np.testing.assert_allclose(probabilities(bundle_answers(bundle, images)), expected, atol=1e-5)


def test_the_tensor_before_a_sigmoid_can_be_named(tmp_path: Path, photos: Path) -> None:
    """A head of independent sigmoids is refused, and --output takes the logits behind it."""
    net = Net()
    logits = net.logits("pixels_in")
    path = net.save(tmp_path / "model.onnx", (net.op("Sigmoid", logits), ["N", CLASSES]))
    with pytest.raises(Exception, match=f"Sigmoid.*--output {logits}"):
        run_import(path, photos, tmp_path / "models" / "m" / "1")
    bundle, _ = imported(path, photos, tmp_path / "models" / "m" / "1", "--output", logits)
    images = images_for(bundle)
    shares = file_answers(path, images)
    np.testing.assert_allclose(bundle_answers(bundle, images), np.log(shares / (1 - shares)), atol=1e-3)


def flat_input(path: Path) -> Path:
    net = Net()
    return net.save(path, (net.head("pixels_in"), ["N", CLASSES]), image=("N", 4))


def two_inputs(path: Path) -> Path:
    from onnx import helper

    net = Net()
    end = net.op("Add", net.logits("pixels_in"), "other")
    other = helper.make_tensor_value_info("other", TensorProto.FLOAT, ["N", CLASSES])
    return net.save(path, (end, ["N", CLASSES]), more_inputs=(other,))


def unknown_operator(path: Path) -> Path:
    net = Net()
    end = net.op("Clairvoyance", net.logits("pixels_in"), domain="com.elsewhere")
    return net.save(path, (end, ["N", CLASSES]), domains=("com.elsewhere",))


def detector(path: Path) -> Path:
    net = Net()
    boxes = net.op("Reshape", net.features("pixels_in"), net.shape(-1, 2, 2))
    return net.save(path, (boxes, ["N", 2, 2]))


def torch_file(path: Path) -> Path:
    path.write_bytes(b"PK\x03\x04archive/data.pkl")
    return path


def lost_weights(path: Path) -> Path:
    from tests.training.graphs.foreign.small_graphs import weights_beside

    weights_beside(path)
    (path.parent / "weights.data").unlink()
    return path


def short_weights(path: Path) -> Path:
    from tests.training.graphs.foreign.small_graphs import weights_beside

    weights_beside(path)
    (path.parent / "weights.data").write_bytes(b"12")
    return path


def weights_elsewhere(path: Path) -> Path:
    """A file that says its weights are one of the system's."""
    import onnx

    from tests.training.graphs.foreign.small_graphs import weights_beside

    weights_beside(path)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../../etc/passwd"
    path.write_bytes(model.SerializeToString())
    return path


def dropout_that_is_on(path: Path) -> Path:
    net = Net()
    noise = net.op("RandomNormalLike", net.logits("pixels_in"))
    return net.save(path, (net.op("Add", net.logits("pixels_in"), noise), ["N", CLASSES]))


def _of_shape(*shape: int | str) -> Any:
    return lambda path: plain(path, image=shape)


WRONG = {
    "short weights": (short_weights, (), "cannot be read.*exceeds.*Copy that file, whole"),
    "weights elsewhere": (weights_elsewhere, (), "passwd.*outside the directory"),
    "random": (dropout_that_is_on, (), r"answers differently each time.*net\.eval\(\)"),
    "huge": (_of_shape("N", 3, 100_000, 100_000), (), "100000x100000.*expected 1 to 4096"),
    "negative": (_of_shape("N", 3, -5, 12), (), "12x-5.*expected 1 to 4096"),
    "huge size": (_of_shape("N", 3, "H", "W"), ("--size", "99999"), "99999x99999.*another --size"),
    "huge batch": (_of_shape(1_000_000, 3, 12, 12), (), "1,000,000 images, expected 1 to 1,024.*dynamic batch size"),
    "grey": (lambda p: _grey(p), (), r"\[N,1,12,12\].*three channels"),
    "flat": (flat_input, (), r"\[N,4\], expected an image"),
    "two inputs": (two_inputs, (), "the inputs 'pixels_in'.*'other'"),
    "an operator": (unknown_operator, (), "cannot be opened by ONNX Runtime.*Clairvoyance"),
    "detector": (detector, (), r"\[N,2,2\].*no classifier"),
    "torch": (torch_file, (), "PyTorch.*torch.onnx.export"),
    "lost weights": (lost_weights, (), "file beside it.*Copy that file"),
    "no such output": (plain, ("--output", "nothing"), "--output nothing is no output.*'t4'"),
    "size": (plain, ("--size", "64"), "--size is 64x64.*Leave --size out"),
    "layout": (plain, ("--layout", "nhwc"), "--layout nhwc"),
}


def _grey(path: Path) -> Path:
    net = Net()
    wide = net.op("Concat", "pixels_in", "pixels_in", "pixels_in", axis=1)
    return net.save(path, (net.logits(wide), ["N", CLASSES]), image=("N", 1, SIDE, SIDE))


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, photos: Path, kind: str) -> None:
    """Each says what was found, what was expected, and what to do; nothing is written."""
    make, flags, sentence = WRONG[kind]
    with pytest.raises(Exception, match=sentence):
        run_import(make(tmp_path / "model.onnx"), photos, tmp_path / "models" / "m" / "1", *flags)
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(("names", "more"), [(("a", "b"), "background"), (("a", "b", "c", "d"), "")])
def test_the_number_of_labels_is_said(tmp_path: Path, photos: Path, names: tuple[str, ...], more: str) -> None:
    """Too few or too many labels: the error says how many classes the graph has."""
    path = ending(tmp_path / "model.onnx", "N,K,1,1")
    with pytest.raises(Exception, match=f"the graph has 3 classes.*--labels names {len(names)}.*{more}"):
        run_import(path, photos, tmp_path / "models" / "m" / "1", labels=names)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [(("--mean", "0.5,0.5"), "--mean is '0.5,0.5'"), (("--std", "0"), "above 0"), (("--size", "big"), "WIDTHxHEIGHT")],
)
def test_a_wrong_value_is_a_usage_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    sentence: str,
) -> None:
    """Exit code 2, and the sentence says how the value is written."""
    command = ["confgate-train", "import-onnx", "m.onnx", "--labels", "a,b", "--calibration", "x", "--out", "m/n/1"]
    monkeypatch.setattr("sys.argv", [*command, *flags])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_thousand_labels_fit_on_the_command_line() -> None:
    """A list of names that is too long for a path is a list of names."""
    names = tuple(f"class {k}" for k in range(1000))
    assert read_labels(",".join(names)) == names
