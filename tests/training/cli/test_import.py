"""`import-onnx` from outside: stopped half-way, with a promise that cannot be made, with very many classes."""

import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from service.model.bundle import load_bundle
from service.model.images import upright
from tests.training.command_line import COMMAND, ENVIRONMENT, in_this_process, write_folder
from tests.training.graphs.foreign.small_graphs import LABELS, SIDE, Net, plain
from training.data import decoded, folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images in three classes."""
    return write_folder(tmp_path_factory.mktemp("import") / "photos")


def words(model: Path, photos: Path, out: Path, labels: str = ",".join(LABELS)) -> list[str]:
    return ["import-onnx", str(model), "--labels", labels, "--calibration", str(photos), "--out", str(out)]


def test_an_import_that_is_interrupted_leaves_nothing(tmp_path: Path, photos: Path) -> None:
    """Ctrl-C ends it with 130 and without a traceback; there is no bundle, and no temporary file."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [*COMMAND, "--progress-seconds", "0", *words(plain(tmp_path / "m.onnx"), photos, tmp_path / "models/m/1")]
    started = subprocess.Popen(
        command, env=ENVIRONMENT | {"TMPDIR": str(temporary)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stderr is not None
    said = started.stderr.readline()  # the first images are done, and most of the work is not
    started.send_signal(signal.SIGINT)
    rest = started.communicate()[1]
    assert "reading features for the bank" in said
    assert started.returncode == 130
    assert "Traceback" not in rest
    assert not (tmp_path / "models").exists()
    assert not list(temporary.iterdir())


def test_policies_are_chosen_as_calibrate_does(tmp_path: Path, photos: Path) -> None:
    """--tpr makes its policy; a --risk that cannot be promised is a note, and the bundle comes all the same."""
    out = tmp_path / "models" / "m" / "1"
    flags = ("--tpr", "90", "--tpr", "80", "--risk", "0.001", "--alpha", "0.1")
    said = in_this_process(*words(plain(tmp_path / "m.onnx"), photos, out), *flags).stdout
    assert "can promise at most 0.10% wrong answers with probability 0.9" in said
    manifest = load_bundle(out).manifest
    assert {"tpr90", "tpr80"} == set(manifest.scores["max_softmax"].policies)
    assert "risk" not in manifest.scores["max_softmax"].policies
    assert manifest.pairs is not None
    assert "balanced" in manifest.pairs.policies
    assert " --tpr 90 --tpr 80 --risk 0.001 --alpha 0.1" in manifest.provenance.commands[0]


@pytest.mark.parametrize("room", ["for all", "for a few", "for none"])
def test_photos_are_decoded_once(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, room: str) -> None:
    """An import passes over them several times; what there is no room for is decoded again, with the same result."""
    most = {"for all": decoded.MOST_BYTES, "for a few": 10 * SIDE * SIDE * 3, "for none": 0}[room]
    monkeypatch.setattr(decoded.keeping_decoded.__wrapped__, "__defaults__", (most,))
    asked: Counter[bytes] = Counter()

    def counted(encoded: bytes, *arguments: Any) -> Any:
        asked[encoded] += 1
        return upright(encoded, *arguments)

    monkeypatch.setattr(folder, "upright", counted)
    out = tmp_path / "models" / "m" / "1"
    in_this_process(*words(plain(tmp_path / "m.onnx"), photos, out))
    assert len(asked) == 60
    assert sum(count == 1 for count in asked.values()) == {"for all": 60, "for a few": 10, "for none": 0}[room]
    files = load_bundle(out).manifest.files
    assert [(file.file, file.sha256) for file in files] == first_import(tmp_path, photos)


def first_import(tmp_path: Path, photos: Path) -> list[tuple[str, str]]:
    """The files of a bundle that was made with room for all images."""
    out = tmp_path / "again" / "m" / "1"
    with pytest.MonkeyPatch.context() as usual:
        usual.setattr(decoded.keeping_decoded.__wrapped__, "__defaults__", (decoded.MOST_BYTES,))
        in_this_process(*words(tmp_path / "m.onnx", photos, out))
    return [(file.file, file.sha256) for file in load_bundle(out).manifest.files]


def test_ten_thousand_classes(tmp_path: Path, photos: Path) -> None:
    """Most of them have no image, which is said in one line; the bundle answers with all of them."""
    net, classes = Net(), 10_000
    logits = net.op("MatMul", net.op("Flatten", net.features("pixels_in")), net.weight(4, classes))
    model = net.save(tmp_path / "many.onnx", (logits, ["N", classes]))
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join([*LABELS, *(f"class {k}" for k in range(len(LABELS), classes))]))
    said = in_this_process(*words(model, photos, tmp_path / "models" / "many" / "1", str(labels))).stdout
    assert "9,997 of 10,000 labels have no image in " in said
    assert max(map(len, said.splitlines())) < 500
    assert len(load_bundle(tmp_path / "models" / "many" / "1").manifest.labels) == classes


def test_a_weight_above_two_gigabytes_is_refused_by_name(tmp_path: Path, photos: Path) -> None:
    """It is beside the graph and is not read: a tensor in a graph cannot be that large."""
    rows, columns = SIDE * SIDE * 3, 1_300_000
    weight = TensorProto(name="huge", data_type=TensorProto.FLOAT, dims=[rows, columns])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="huge.data")
    net = Net()
    flat = net.op("Flatten", "pixels_in")
    net.weights.append(weight)
    wide = net.op("MatMul", flat, "huge")
    path = net.save(tmp_path / "huge.onnx", (wide, ["N", columns]))
    told = in_this_process(*words(path, photos, tmp_path / "models" / "m" / "1"), check=False)
    assert told.returncode == 2
    assert "has the weight 'huge' of 2.2 GB, and a tensor of an ONNX graph can take up to 2 GB" in told.stderr
