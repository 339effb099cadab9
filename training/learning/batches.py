"""Training batches by step number. What a step sees depends on the seed and the step alone.

A resumed run therefore repeats a step exactly, with any number of worker processes, and each rank takes its part of the
batch that a single process would see.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from training.data.folder import FolderImages
from training.data.splits import Images, LabelledImages, Labels
from training.errors import DataError, RecipeError, RunError
from training.learning.augmentation.batch import augment, cutout_mask, flips, pad_images
from training.learning.balance import balanced_order
from training.recipe import Recipe


class Batch(NamedTuple):
    """One rank's part of a training batch."""

    images: Tensor  # [B,H,W,3] uint8, augmented
    kept: Tensor  # [B,H,W], False where Cutout blanks a pixel
    labels: Tensor  # [B]
    hinted: Tensor  # [B], which samples may ask for hints
    dropout_seed: int


class Batches(Protocol):
    """A source of batches by step number."""

    def between(self, first_step: int, last_step: int) -> Iterator[Batch]:
        """The batches of these steps, in order, without the last."""
        ...


@dataclass(frozen=True)
class Plan:
    """Which images each step sees, and which part of them this rank takes."""

    seed: int
    images: int
    batch_size: int
    rank: int = 0
    world: int = 1
    balanced: Tensor | None = None  # the images' labels, where every class is shown equally often

    @property
    def steps_per_epoch(self) -> int:
        return self.images // self.batch_size

    def check(self) -> None:
        """Fails for a batch size that the number of images or ranks does not allow."""
        if self.steps_per_epoch == 0:
            raise RecipeError(
                f"optimiser.batch_size is {self.batch_size}, but there are only {self.images} training images. "
                f"Lower it with --set optimiser.batch_size={max(1, self.images // 4)}."
            )
        if self.batch_size % self.world:
            raise RecipeError(
                f"optimiser.batch_size is {self.batch_size}, which {self.world} processes cannot share evenly."
            )

    def indices(self, step: int) -> Tensor:
        """The whole batch of this step, over all ranks."""
        epoch, batch = divmod(step, self.steps_per_epoch)
        return self._order(epoch)[batch * self.batch_size :][: self.batch_size]

    def _order(self, epoch: int) -> Tensor:
        if self.balanced is None:
            return _epoch_order(self.seed, epoch, self.images)
        return _balanced_epoch_order(self.seed, epoch, self.balanced)

    @property
    def mine(self) -> slice:
        """The part of each batch that this rank takes."""
        share = self.batch_size // self.world
        return slice(self.rank * share, (self.rank + 1) * share)


@lru_cache(maxsize=2)
def _epoch_order(seed: int, epoch: int, images: int) -> Tensor:
    return torch.randperm(images, generator=step_generator(seed, epoch, "order"))


@lru_cache(maxsize=2)
def _balanced_epoch_order(seed: int, epoch: int, labels: Tensor) -> Tensor:
    return balanced_order(labels, step_generator(seed, epoch, "order"))


def step_generator(seed: int, number: int, purpose: str) -> torch.Generator:
    """A generator for one step or epoch, independent of all others."""
    words = np.random.SeedSequence([seed, number, *purpose.encode()]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0] >> np.uint64(1)))


def make_batches(part: LabelledImages, recipe: Recipe, plan: Plan, device: torch.device, workers: int) -> Batches:
    """Arrays are augmented in memory; worker processes decode and augment the images of a folder."""
    if isinstance(part.images, FolderImages):
        return FolderBatches(part.images, part.labels, recipe, plan, workers)
    if recipe.augment.smallest_area > 0:
        raise RecipeError(
            f"augment.smallest_area is {recipe.augment.smallest_area}: it crops photos of a folder (--data) before "
            f"they are resized. '{recipe.data.dataset}' is stored at its size; use augment.crop_padding."
        )
    return ArrayBatches(part.images, part.labels, recipe, plan, device)


class ArrayBatches:
    """All images in memory, on the device that trains."""

    def __init__(self, images: Images, labels: Labels, recipe: Recipe, plan: Plan, device: torch.device) -> None:
        self.recipe, self.plan = recipe, plan
        self.padded = pad_images(torch.from_numpy(images), recipe.augment).to(device)
        self.labels = torch.from_numpy(labels)

    def between(self, first_step: int, last_step: int) -> Iterator[Batch]:
        return (self._batch(step) for step in range(first_step, last_step))

    def _batch(self, step: int) -> Batch:
        indices, generator = self.plan.indices(step), step_generator(self.plan.seed, step, "step")
        dropout_seed = _draw_seed(generator)
        epoch = step // self.plan.steps_per_epoch
        crops, kept = augment(self.padded, indices, epoch, self.recipe.augment, generator)
        hinted = torch.rand(len(indices), generator=generator) < self.recipe.confidence.hint_probability
        mine = self.plan.mine
        return Batch(crops[mine], kept[mine], self.labels[indices][mine], hinted[mine], dropout_seed)


class FolderBatches(Dataset[Batch | DataError]):
    """Images decoded and augmented as they are needed; item k is the batch of step k, or why it cannot be made.

    An error is returned, not raised: torch would add a worker's traceback to its message.
    """

    def __init__(self, images: FolderImages, labels: Labels, recipe: Recipe, plan: Plan, workers: int) -> None:
        self.images, self.recipe, self.plan, self.workers = images, recipe, plan, workers
        self.labels = torch.from_numpy(labels)

    def between(self, first_step: int, last_step: int) -> Iterator[Batch]:
        # batch_size None: one item is one whole batch, made by one worker; the loader returns them in order.
        loader = DataLoader(
            self, batch_size=None, sampler=range(first_step, last_step), num_workers=self.workers, pin_memory=False
        )
        items = iter(loader)
        while (item := _next_of(items)) is not None:
            if isinstance(item, DataError):
                raise item
            yield item

    def __getitem__(self, step: int) -> Batch | DataError:
        try:
            return self._batch(step)
        except DataError as problem:
            return problem

    def _batch(self, step: int) -> Batch:
        from training.learning.augmentation.photo import augment_photo  # torchvision: only where photos are streamed

        indices, generator = self.plan.indices(step), step_generator(self.plan.seed, step, "step")
        dropout_seed = _draw_seed(generator)
        epoch = step // self.plan.steps_per_epoch
        _, height, width, _ = self.images.shape
        flipped = flips(indices, epoch, self.recipe.augment, generator)
        kept = cutout_mask(len(indices), height, width, self.recipe.augment, generator)
        hinted = torch.rand(len(indices), generator=generator) < self.recipe.confidence.hint_probability
        seeds = torch.randint(2**62, (len(indices),), generator=generator)
        mine = self.plan.mine
        photos = [
            augment_photo(self.images, index, self.recipe.augment, flip, seed)
            for index, flip, seed in zip(
                indices[mine].tolist(), flipped[mine].tolist(), seeds[mine].tolist(), strict=True
            )
        ]
        return Batch(torch.stack(photos), kept[mine], self.labels[indices][mine], hinted[mine], dropout_seed)


@contextmanager
def lost_workers_explained() -> Iterator[None]:
    """Says what to do if a worker process is lost; torch raises its error from whatever code runs at that moment."""
    try:
        yield
    except RuntimeError as problem:
        if "DataLoader worker (pid" not in str(problem):
            raise
        raise _lost_worker(str(problem).splitlines()[0]) from problem


def _next_of(items: Iterator[Batch | DataError]) -> Batch | DataError | None:
    """The next item, None after the last. A batch is fetched from its worker's memory, and the worker may be gone."""
    try:
        return next(items, None)
    except (ConnectionError, EOFError, FileNotFoundError) as problem:
        raise _lost_worker(f"its batch could not be fetched ({problem or type(problem).__name__})") from problem


def _lost_worker(reason: str) -> RunError:
    # torch tells of the same loss once more, by an error out of a signal handler: the run is ending already.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return RunError(
        f"a process that decodes images is lost: {reason.rstrip('. ')}. If memory ran out, use fewer --workers "
        f"(0: none). The same command goes on from the last checkpoint."
    )


def _draw_seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (1,), generator=generator))
