"""`--init` with a user's own checkpoint: the head under whatever name, wrapped as trainers wrap it."""

import pytest
import torch
from torch import nn

from training.learning.pretrained import load_pretrained
from training.networks import add_confidence_branch, build_network

pytestmark = pytest.mark.usefixtures("one_thread")

HEADS = {
    "torchvision:resnet18": "fc",
    "torchvision:mobilenet_v3_small": "classifier.3",
    "efficientnet-lite0": "classifier",
}


def trained_elsewhere(name, classes):
    """A network's weights under the names that its own library gives them."""
    torch.manual_seed(classes)
    network = build_network(name, classes, 32)
    return network.body.state_dict() | {
        f"{HEADS[name]}.{key}": value for key, value in network.head.state_dict().items()
    }


@pytest.mark.parametrize("name", HEADS)
def test_the_head_comes_along_where_the_classes_are_as_many(tmp_path, name):
    """Every tensor of body and head arrives; the branch stays fresh, and the terminal says whose head it is."""
    theirs = trained_elsewhere(name, 4)
    torch.save(theirs, tmp_path / "mine.pth")
    ours = add_confidence_branch(build_network(name, 4, 32))
    report = load_pretrained(ours, tmp_path / "mine.pth")
    assert torch.equal(ours.head.weight, theirs[f"{HEADS[name]}.weight"])
    assert torch.equal(ours.head.bias, theirs[f"{HEADS[name]}.bias"])
    assert all(torch.equal(value, theirs[key]) for key, value in ours.body.state_dict().items())
    assert report.fresh == ("branch.0.weight", "branch.0.bias")
    assert f"the head is {HEADS[name]}: its 4 classes must be in the order of the labels here" in report.describe()


def test_a_head_of_other_classes_stays_fresh_and_says_so(tmp_path):
    """Five classes in the file and four here: the body is taken, the head is not, and the reason is given."""
    torch.save(trained_elsewhere("torchvision:resnet18", 5), tmp_path / "mine.pth")
    ours = build_network("torchvision:resnet18", 4, 32)
    before = ours.head.weight.clone()
    report = load_pretrained(ours, tmp_path / "mine.pth")
    assert torch.equal(ours.head.weight, before)
    assert len(report.taken) == len(ours.body.state_dict())
    assert "the head stays fresh: fc.bias is of 5 classes, here are 4" in report.describe()


@pytest.mark.parametrize("head", ["fc", "classifier", "classifier.1", "head", "head.fc", "heads.head"])
def test_a_head_is_found_under_the_names_of_other_libraries(tmp_path, head):
    """The same body with its last layer called otherwise."""
    theirs = trained_elsewhere("torchvision:mobilenet_v3_small", 4)
    renamed = {
        f"{head}.{key.rpartition('.')[2]}" if key.startswith("classifier.3.") else key: value
        for key, value in theirs.items()
    }
    torch.save(renamed, tmp_path / "mine.pth")
    ours = build_network("torchvision:mobilenet_v3_small", 4, 32)
    load_pretrained(ours, tmp_path / "mine.pth")
    assert torch.equal(ours.head.weight, theirs["classifier.3.weight"])


WRAPPED = {
    "data parallel": lambda own, _: {f"module.{key}": value for key, value in own.items()},
    "Lightning": lambda own, _: {
        "epoch": 3,
        "hyper_parameters": {"rate": 0.1},
        "state_dict": {f"model.{key}": value for key, value in own.items()} | {"criterion.weight": torch.ones(4)},
    },
    "compiled": lambda own, _: {"model": {f"_orig_mod.{key}": value for key, value in own.items()}},
    "timm with an average": lambda own, other: {"state_dict": other, "state_dict_ema": own},
    "an average beside it": lambda own, other: {
        **{f"model.{key}": value for key, value in other.items()},
        **{f"ema_model.module.{key}": value for key, value in own.items()},
    },
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_checkpoint_is_unwrapped(tmp_path, kind):
    """Prefixes and nesting of common trainers; where an average of the weights is kept, it is the one taken."""
    own, other = (
        trained_elsewhere("torchvision:mobilenet_v3_small", 4),
        trained_elsewhere("torchvision:mobilenet_v3_small", 4),
    )
    other = {key: nn.init.zeros_(value.clone()) for key, value in other.items()}
    torch.save(WRAPPED[kind](own, other), tmp_path / "mine.pt")
    ours = build_network("torchvision:mobilenet_v3_small", 4, 32)
    load_pretrained(ours, tmp_path / "mine.pt")
    assert torch.equal(ours.head.weight, own["classifier.3.weight"])
    assert torch.equal(ours.body.features[0][0].weight, own["features.0.0.weight"])
