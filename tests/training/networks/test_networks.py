"""Every network: published sizes, one form of output, the branch, export, and sizes that cannot be."""

import numpy as np
import pytest
import torch
from torch import nn

from training.data.normalise import normalise
from training.errors import RecipeError
from training.graphs import parity
from training.graphs.from_torch import export_network
from training.graphs.run import open_graph, run_graph
from training.graphs.torch_layers import shown_layers
from training.networks import add_confidence_branch, build_network, check_network
from training.networks.vgg import vgg13

CLASSES = 4
# Small networks of every kind, and the side of their images: sides that are not 32 wherever that is possible.
SMALL = {
    "compact": (lambda: build_network("compact", CLASSES, 13, (4, 6, 8)), 13),
    "vgg13": (lambda: vgg13(CLASSES, 64, stages=(4, 4, 6, 6, 8)), 64),
    "wrn": (lambda: build_network("wrn-10-1", CLASSES, 10), 10),
    "densenet-bc": (lambda: build_network("densenet-bc-10-3", CLASSES, 14), 14),
    "mlp": (lambda: build_network("mlp", CLASSES, 6, (10, 8)), 6),
    "torchvision": (lambda: build_network("torchvision:resnet18", CLASSES, 32), 32),
}


@pytest.fixture(params=SMALL)
def small(request):
    """A small network and the side of its images."""
    make, side = SMALL[request.param]
    torch.manual_seed(0)
    return make(), side


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "parameters", "features"),
    [
        # models/vgg.py of github.com/uoguelph-mlrg/confidence_estimation without its Linear(512, 1), by hand:
        # convolutions 9,402,048 + 2,944, batch norms 5,888, Linear(512, 10) 5,130.
        ("vgg13", 9_416_010, 512),
        # arXiv:1605.07146 has 11.0 M and 36.5 M; the second to the last digit in
        # pytorch/pytorchcv/models/wrn_cifar.py of github.com/osmr/imgclsmob, which checks its networks by these counts.
        ("wrn-16-8", 10_961_370, 512),
        ("wrn-28-10", 36_479_194, 640),
        # arXiv:1608.06993 has 0.8 M; to the last digit in densenet_cifar.py of the same repository.
        ("densenet-bc", 769_162, 342),
    ],
)
def test_paper_networks_have_the_published_number_of_parameters(name, parameters, features):
    """Each of the paper's networks for ten classes has, without a branch, exactly as many parameters as published."""
    network = build_network(name, 10, 32)
    assert count(network) == parameters
    assert network.feature_width == features


def test_mlp_is_that_of_the_paper():
    """Three hidden layers of 100, then class and confidence branches with one of 100 each."""
    network = add_confidence_branch(build_network("mlp", 2, 1), (100,))
    shapes = [tuple(p.shape) for p in network.parameters() if p.ndim == 2]
    assert shapes == [(100, 3), (100, 100), (100, 100), (100, 100), (2, 100), (100, 100), (1, 100)]


def test_output_without_and_with_the_branch(small):
    """Logits [N,K] always; the confidence logit is None without a branch, [N] with one, and leaves the logits alone."""
    network, side = small
    network.eval()
    images = torch.randn(3, 3, side, side)
    plain = network(images)
    assert plain.confidence_logit is None
    add_confidence_branch(network, (5,))
    branched = network.eval()(images)
    assert branched.logits.shape == (3, CLASSES)
    assert branched.confidence_logit.shape == (3,)
    torch.testing.assert_close(branched.logits, plain.logits)


def test_branch_and_head_both_train_the_whole_network(small):
    """Each output alone sends a gradient to the first layer, and the branch reads what the head reads."""
    network, side = small
    add_confidence_branch(network)
    assert [tuple(p.shape) for p in network.branch.parameters()] == [(1, network.feature_width), (1,)]
    for output in (0, 1):
        images = torch.randn(4, 3, side, side, requires_grad=True)
        network(images)[output].square().sum().backward()
        assert images.grad.abs().max() > 0


def test_branch_depth_and_width_are_options():
    """hidden=(7, 5) on 8 features is Linear(8, 7), Linear(7, 5), Linear(5, 1) with ReLU between."""
    network = add_confidence_branch(build_network("mlp", CLASSES, 2, (8,)), (7, 5))
    assert [type(layer) for layer in network.branch] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [tuple(p.shape) for p in network.branch.parameters() if p.ndim == 2] == [(7, 8), (5, 7), (1, 5)]
    smooth = add_confidence_branch(build_network("mlp", CLASSES, 2, (8,)), (7,), "gelu")
    assert isinstance(smooth.branch[1], nn.GELU)


def test_compact_takes_smaller_images_in_training():
    """A training can begin on small images: the last max pool covers whatever is left."""
    network = build_network("compact", CLASSES, 32, (8, 8, 8)).train()
    assert network(torch.zeros(2, 3, 24, 24)).logits.shape == (2, CLASSES)


@pytest.mark.parametrize(
    ("name", "reads_layers"), [*((name, False) for name in SMALL), ("compact", True), ("wrn", True)]
)
def test_exported_graph_gives_the_same_outputs(name, reads_layers, monkeypatch):
    """ONNX Runtime agrees with torch on both outputs at batches of 1, 2 and 7."""
    monkeypatch.setattr(parity, "PARITY_BATCHES", (1, 2, 7))
    torch.manual_seed(0)
    make, side = SMALL[name]
    network = make()
    add_confidence_branch(network, (6,), layers=shown_layers(network, side) if reads_layers else ())
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    # From dark to bright: noise alone looks the same to a network that averages over the image.
    brightness = np.arange(1, 8).reshape(7, 1, 1, 1) / 7
    images = (np.random.default_rng(0).integers(0, 256, (7, side, side, 3)) * brightness).astype(np.uint8)
    _settle_batch_norms(network, normalise(torch.from_numpy(images), torch.tensor(mean), torch.tensor(std)))
    model = export_network(network, mean, std, side)
    assert parity.check_parity(model, network, mean, std, images) <= 1e-4
    found = run_graph(open_graph(model), images)
    for name in ("logits", "confidence_logit"):  # outputs that do not depend on the image would agree by themselves
        assert np.ptp(found[name], axis=0).max() > 1e-3


def _settle_batch_norms(network, images):
    """Running statistics like those of a trained network: at 0 and 1 the signal would fade away in a deep one."""
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 1.0
    with torch.no_grad():
        network.train()(images)


def test_convolutions_start_as_in_the_papers():
    """WideResNet and DenseNet: deviation √(2 / (k²·channels out)), zero offsets, norms that change nothing."""
    torch.manual_seed(0)
    for name in ("wrn-16-4", "densenet-bc-40-24"):
        network = build_network(name, 10, 32)
        kernels = [m.weight for m in network.modules() if isinstance(m, nn.Conv2d) and m.weight.numel() > 20_000]
        assert len(kernels) > 5
        for kernel in kernels:
            expected = (2 / (kernel.shape[0] * kernel.shape[2] * kernel.shape[3])) ** 0.5
            assert kernel.std().item() == pytest.approx(expected, rel=0.04)
        assert not network.head.bias.any()
        norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
        assert all((m.weight == 1).all() and not m.bias.any() for m in norms)


@pytest.mark.parametrize(("name", "side"), [("wrn-10-1", 28), ("densenet-bc-10-3", 28), ("compact", 28)])
def test_images_of_28_pixels_work_where_the_architecture_allows(name, side):
    """MNIST-like images need no resizing for WideResNet, DenseNet and compact."""
    network = build_network(name, CLASSES, side).eval()
    assert network(torch.zeros(2, 3, side, side)).logits.shape == (2, CLASSES)


@pytest.mark.parametrize(
    ("name", "side", "message"),
    [
        ("vgg13", 28, "'vgg13' cannot take images of 28×28 pixels, expected at least 32×32"),
        ("compact", 8, "'compact' cannot take images of 8×8 pixels, expected at least 9×9"),
        ("efficientnet-lite0", 31, "'efficientnet-lite0' cannot take images of 31×31 pixels, expected at least 32×32"),
        ("wrn-10-1", 3, "'wrn-10-1' cannot take images of 3×3"),
        ("densenet-bc-10-3", 3, "'densenet-bc-10-3' cannot take images of 3×3"),
        ("torchvision:alexnet", 32, "'torchvision:alexnet' cannot take images of 32×32 pixels: .*too small"),
        ("wrn-11-2", 32, "'wrn-11-2', expected wrn-DEPTH-WIDTH with a depth of 10, 16"),
        ("wrn-16-0", 32, "'wrn-16-0', expected wrn-DEPTH-WIDTH"),
        ("densenet-bc-12-4", 32, "'densenet-bc-12-4', expected densenet-bc"),
        ("vgg14", 32, "network.name is 'vgg14', expected one of: compact, vgg13"),
        ("torchvision:renset18", 32, "torchvision has no classifier 'renset18'. Did you mean resnet18"),
        ("torchvision:squeezenet1_1", 64, "'torchvision:squeezenet1_1' cannot be cut"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(name, side, message):
    """An unknown name, an impossible depth and an impossible image size each name the network and what was expected."""
    with pytest.raises(RecipeError, match=message):
        build_network(name, CLASSES, side)


@pytest.mark.parametrize("name", ["wrn-11-2", "densenet-bc-12-4", "vgg14", "torchvision:renset18"])
def test_a_name_alone_is_enough_to_refuse_it(name):
    """What can be built for no size of images is refused without knowing it."""
    with pytest.raises(RecipeError, match=f"network.name is '{name}'"):
        check_network(name)
    check_network("torchvision:resnet18")


@pytest.mark.parametrize(("name", "widths"), [("vgg13", (8, 8)), ("compact", (8, 8))])
def test_widths_that_a_network_has_no_use_for_are_refused(name, widths):
    """network.widths is for compact (three numbers) and mlp only."""
    with pytest.raises(RecipeError, match=rf"network.widths.*\[8, 8\].*{name}|network.widths of '{name}' is \[8, 8\]"):
        build_network(name, CLASSES, 32, widths)


@pytest.mark.parametrize(("name", "side"), [("resnet18", 32), ("mobilenet_v3_small", 32), ("googlenet", 32)])
def test_a_torchvision_network_is_the_one_torchvision_builds(name, side):
    """Body and head together give what torchvision's model gives with the same weights, auxiliary heads left out."""
    torch.manual_seed(3)
    network = build_network(f"torchvision:{name}", CLASSES, side)
    from torchvision import models

    torch.manual_seed(3)
    extra = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    reference = models.get_model(name, weights=None, num_classes=CLASSES, **extra).eval()
    images = torch.randn(2, 3, side, side)
    with torch.no_grad():
        torch.testing.assert_close(network.eval()(images).logits, reference(images))
    assert network.training is False
    assert isinstance(network.train()(images).logits, torch.Tensor)
