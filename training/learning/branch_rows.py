"""What a branch is fitted on: some views of each image, ordinary and hard, as the layers of a graph see them.

    rows = read_rows(forward, images, views=2, seed=0, folder=Path(temporary))

Each view passes the graph once; what the branch reads of it (see `training.graphs.layers`) is kept in a file, so that
memory does not grow with the number of images. Ordinary views are the image as it is served, and then moved by up to an
eighth of its side. Hard views are those of `hard_images`: the classifier misclassifies many of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from service.model.images import Pixels
from service.model.session import fixed_batch
from training.graphs.features import LOGITS
from training.graphs.image_views import AnyImages, batches_of
from training.graphs.images_at_once import images_at_once
from training.graphs.layers import BRANCH_INPUT, with_branch_input
from training.graphs.progress import images_done, pass_begins
from training.graphs.run import open_graph
from training.learning.augmentation.hard_images import CHANGES, harden

MOST_BYTES = 600 * 2**20  # what the rows of all images may take
MOST_AT_ONCE = 100
# Hard views are made of so many images together: each kind of change gets its share of them.
CHUNK, CHUNK_BYTES = 64, 24 * 2**20
MEASURED_ROWS = 2_000  # the scale is measured on the first ones
SPREAD = 0.5
LARGEST = 1_000.0  # of a scaled value

Scaled = NDArray[np.float16]


@dataclass(frozen=True)
class BranchRows:
    """R rows: of each image as many ordinary views as hard ones."""

    inputs: Scaled  # [R,W], on disk: x·scale of what the branch reads
    scale: float
    logits: NDArray[np.float32]  # [R,K]
    image: NDArray[np.int64]  # [R]: which of the images a row is a view of
    is_hard: NDArray[np.bool_]  # [R]
    is_plain: NDArray[np.bool_]  # [R]: the image as it is served
    widths: tuple[int, ...]  # of the features, then of each layer

    @property
    def features(self) -> int:
        """How many of the first columns are the penultimate features."""
        return self.widths[0]


def images_that_fit(forward: onnx.ModelProto, views: int, classes: int) -> int:
    """How many images may be read with so many views of each kind."""
    _, widths = with_branch_input(forward)
    return max(1, MOST_BYTES // (2 * views * (2 * sum(widths) + 4 * classes)))


def read_rows(forward: onnx.ModelProto, images: AnyImages, views: int, seed: int, folder: Path) -> BranchRows:
    """All views of all images; `images` have the size that the graph takes. `folder` gets the file of rows."""
    shown, widths = with_branch_input(forward)
    session = open_graph(shown)
    batch = fixed_batch(session) or images_at_once(shown, MOST_AT_ONCE)
    count = 2 * views * len(images)
    inputs = np.memmap(folder / "branch_rows", np.float16, "w+", shape=(count, sum(widths)))
    logits, image = np.empty((0, 0), np.float32), np.empty(count, np.int64)
    is_hard, is_plain = np.empty(count, np.bool_), np.zeros(count, np.bool_)
    scale: float | None = None
    waiting: list[NDArray[np.float32]] = []
    done = written = 0
    pass_begins("reading layers for the branch", count)
    for indices, pixels, hard, plain in _views(images, views, seed):
        for start in range(0, len(pixels), batch):
            part = pixels[start : start + batch]
            read, answers = session.run([BRANCH_INPUT, LOGITS], {"image": part})
            if not len(logits):
                logits = np.empty((count, answers.shape[1]), np.float32)
            here = slice(done, done + len(part))
            logits[here], image[here], is_hard[here] = answers, indices[start : start + batch], hard
            is_plain[here] = plain
            waiting.append(read)
            done += len(part)
            images_done(len(part))
        if scale is None and (done >= MEASURED_ROWS or done == count):
            scale = _scale_of(np.concatenate(waiting))
        if scale is not None:
            for rows in waiting:
                inputs[written : written + len(rows)] = np.clip(rows * scale, -LARGEST, LARGEST)
                written += len(rows)
            waiting.clear()
    inputs.flush()
    assert scale is not None  # there is at least one image
    return BranchRows(inputs, scale, logits, image, is_hard, is_plain, tuple(widths))


def _views(images: AnyImages, views: int, seed: int) -> Iterator[tuple[NDArray[np.int64], Pixels, bool, bool]]:
    """Indices and pixels of some images at a time, and whether it is a hard view, and the plain one."""
    height, width = images.shape[1:3]
    chunk = max(len(CHANGES), min(CHUNK, CHUNK_BYTES // (height * width * 3)))
    first = 0
    for pixels in batches_of(images, chunk):
        indices = np.arange(first, first + len(pixels))
        for view in range(views):
            generator = torch.Generator().manual_seed(hash((seed, first, view)) % 2**63)
            yield indices, pixels if view == 0 else _moved(pixels, generator), False, view == 0
            # In another order each time: which change an image gets follows from its place.
            order = torch.randperm(len(pixels), generator=generator).numpy()
            hard = harden(torch.from_numpy(np.ascontiguousarray(pixels[order])), generator).numpy()
            yield indices[order], hard, True, False
        first += len(pixels)


def _moved(pixels: Pixels, generator: torch.Generator) -> Pixels:
    """Each image moved by up to an eighth of its sides; what comes into view is its mirror image."""
    n, height, width, _ = pixels.shape
    down, right = (ceil(length / 8) for length in (height, width))
    wide = np.pad(pixels, ((0, 0), (down, down), (right, right), (0, 0)), mode="symmetric")
    top = torch.randint(0, 2 * down + 1, (n,), generator=generator).numpy()
    left = torch.randint(0, 2 * right + 1, (n,), generator=generator).numpy()
    rows = (top[:, None] + np.arange(height))[:, :, None]
    columns = (left[:, None] + np.arange(width))[:, None, :]
    return wide[np.arange(n)[:, None, None], rows, columns]


def _scale_of(rows: NDArray[np.float32]) -> float:
    """One for all values, which brings their root mean square spread to SPREAD.

    A scale for each value would make as much of those that hardly vary as of those that tell classes apart: tried, it
    told OOD images apart less well, and so did taking off the mean of each (training/LOG.md).
    """
    typical = float(np.sqrt(np.mean(rows.std(axis=0, dtype=np.float64) ** 2)))
    return SPREAD / typical if typical > 0 else 1.0
