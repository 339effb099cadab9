"""Recognises images by hash: those a network was trained on must not set its thresholds, nor be tested on.

A hash is the first 8 bytes of SHA-256 of the pixels as the network sees them: at its input size, decoded as they are
served. It recognises copies under any name, a set's images saved as files, and files saved again without loss. It does
not recognise a photo that was compressed again, cropped or resized: those have other pixels. A chance match of two
among a million images has a probability of 3 in 100 million.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Bundle, Input
from service.model.images import Pixels, fit_array
from training.data.files import named
from training.errors import DataError

Hashes = NDArray[np.uint64]
STORED = np.dtype("<u8")
TRAINED_ON = "images that the model was trained on"


class HashedImages(Protocol):
    """Images whose hashes are known, such as those of a folder."""

    @property
    def hashes(self) -> Hashes: ...

    @property
    def names(self) -> Sequence[str]: ...


def hash_of(image: Pixels) -> int:
    """Of one image at the network's size."""
    return int.from_bytes(hashlib.sha256(np.ascontiguousarray(image).tobytes()).digest()[:8], "big")


def hashes_of(images: Pixels | HashedImages, target: Input) -> Hashes:
    """One for each image; arrays of another size are brought to the network's by the code that serves."""
    if not isinstance(images, np.ndarray):
        return images.hashes
    ready = images.shape[1:3] == (target.height, target.width)
    return np.asarray([hash_of(image if ready else fit_array(image, target)) for image in images], np.uint64)


def fingerprint_of(target: Input, *parts: tuple[Pixels | HashedImages, NDArray[np.int64] | None]) -> str:
    """Of the pixels that the network sees and of their labels, in any order; None: a part has no labels."""
    digest = hashlib.sha256()
    for images, labels in parts:
        hashes = hashes_of(images, target)
        order = np.argsort(hashes, kind="stable") if labels is None else np.lexsort((labels, hashes))
        digest.update(hashes[order].tobytes())
        digest.update(b"unlabelled" if labels is None else labels[order].tobytes())
    return digest.hexdigest()[:16]


def pack(hashes: Hashes) -> bytes:
    """As a bundle keeps them: sorted, each once, 8 bytes an image."""
    return np.unique(hashes).astype(STORED).tobytes()


def unpack(content: bytes) -> Hashes:
    """What `pack` wrote."""
    return np.frombuffer(content, STORED).astype(np.uint64)


def hashes_in(bundle: Bundle) -> Hashes:
    """Of the images that its network was trained on; empty where the bundle does not say."""
    kept = bundle.manifest.training_images
    return np.zeros(0, np.uint64) if kept is None else unpack(bundle.files[kept.file])


def refuse_seen(what: str, images: Pixels | HashedImages, target: Input, known: Mapping[str, Hashes]) -> None:
    """Fails if any image is known; names some of them. `known` has what the known images are, and their hashes."""
    if not any(map(len, known.values())):
        return
    hashes = hashes_of(images, target)
    for known_as, theirs in known.items():
        both = np.flatnonzero(np.isin(hashes, theirs)).tolist()
        if both:
            names = [f"image {index}" if isinstance(images, np.ndarray) else images.names[index] for index in both]
            raise DataError(
                f"{what}: {len(both)} of {len(hashes)} images are {known_as}: {named(names, ', ')}. Leave them out: "
                f"what is measured or calibrated on them would not hold for new images."
            )
