"""The training loop. A run is a folder: recipe.json, checkpoint.pt, metrics.jsonl, and result.json once it is done.

Killed at any moment, the same command goes on from the last checkpoint and ends with the same weights: everything a
step draws at random (order, crops, Cutout, hints) depends on the seed and the step number alone.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from training.augment import augment, normalise, pad_images
from training.data import LabelledImages, Splits
from training.errors import RecipeError
from training.loss import BudgetController, confidence_loss
from training.networks import Classifier, add_confidence_branch, build_network, whiten
from training.recipe import Optimiser, Recipe

CHECKPOINT_SECONDS = 60.0
EVALUATION_BATCH = 500
WHITENING_IMAGES = 5_000


@dataclass
class StepReport:
    """What the progress display and metrics.jsonl show of one step."""

    epoch: int
    step: int
    total_steps: int
    loss: float
    confidence_loss: float
    confidence_weight: float
    accuracy: float
    images_per_second: float


@dataclass
class EpochReport:
    epoch: int
    train_accuracy: float
    train_wrong: int
    validation_accuracy: float
    confidence_loss: float
    confidence_spread: float
    confidence_weight: float
    warnings: list[str] = field(default_factory=list)


class Run:
    """A training run that can be stopped after any step and taken up again."""

    def __init__(self, recipe: Recipe, splits: Splits, seed: int, folder: Path) -> None:
        self.recipe, self.splits, self.seed, self.folder = recipe, splits, seed, folder
        self.steps_per_epoch = len(splits.train) // recipe.optimiser.batch_size
        if self.steps_per_epoch == 0:
            raise RecipeError(
                f"optimiser.batch_size is {recipe.optimiser.batch_size}, but there are only {len(splits.train)} "
                f"training images. Lower it."
            )
        self.total_steps = self.steps_per_epoch * recipe.optimiser.epochs
        self.mean, self.std = channel_statistics(splits.train.images)
        self.network = self._fresh_network()
        self.averaged = average_of(self.network, recipe.optimiser.average_decay)
        self.optimiser = make_optimiser(self.network, recipe.optimiser)
        settings = recipe.confidence
        self.controller = BudgetController(
            settings.budget,
            settings.initial_weight,
            self.total_steps,
            settings.rule,
            settings.speed,
            settings.relative_step,
        )
        self.step = 0
        self.augmentation = recipe.augment.augmentation()
        self.padded = pad_images(torch.from_numpy(splits.train.images), self.augmentation)
        self.labels = torch.from_numpy(splits.train.labels)

    def _fresh_network(self) -> Classifier:
        torch.manual_seed(self.seed)
        size = self.splits.train.images.shape[1]
        network = build_network(
            self.recipe.network.name, len(self.splits.label_names), size, self.recipe.network.widths
        )
        if self.recipe.confidence.enabled:
            add_confidence_branch(network, self.recipe.confidence.branch_hidden)
        if self.recipe.network.name == "compact":
            sample = torch.from_numpy(self.splits.train.images[:WHITENING_IMAGES])
            whiten(network, normalise(sample, self.mean, self.std))
        return network

    @property
    def served_network(self) -> Classifier:
        """The weights to evaluate and export: the average where one is kept."""
        return self.network if self.averaged is None else self.averaged.module

    def train(self, on_step: Callable[[StepReport], None], on_epoch: Callable[[EpochReport], None]) -> None:
        """From the last checkpoint to the end."""
        self.load_checkpoint()
        saved_at = time.monotonic()
        while self.step < self.total_steps:
            epoch = self.step // self.steps_per_epoch
            summary = EpochSummary()
            for indices in self._remaining_batches(epoch):
                report = self._train_step(epoch, indices, summary)
                on_step(report)
                if time.monotonic() - saved_at > CHECKPOINT_SECONDS and self.step % self.steps_per_epoch:
                    self.save_checkpoint()
                    saved_at = time.monotonic()
            accuracy = self.accuracy(self.splits.validation)
            epoch_report = summary.report(epoch, accuracy, self.controller, self.recipe.confidence.enabled)
            with (self.folder / "metrics.jsonl").open("a") as log:
                log.write(json.dumps({"step": self.step} | asdict(epoch_report)) + "\n")
            self.save_checkpoint()
            saved_at = time.monotonic()
            on_epoch(epoch_report)

    def _remaining_batches(self, epoch: int) -> Iterator[Tensor]:
        order = torch.randperm(len(self.labels), generator=step_generator(self.seed, epoch, "order"))
        first = self.step % self.steps_per_epoch
        for batch in range(first, self.steps_per_epoch):
            yield order[batch * self.recipe.optimiser.batch_size :][: self.recipe.optimiser.batch_size]

    def _train_step(self, epoch: int, indices: Tensor, summary: "EpochSummary") -> StepReport:
        started = time.monotonic()
        generator = step_generator(self.seed, self.step, "step")
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))  # dropout, where a network has it
        crops, kept = augment(self.padded, indices, epoch, self.augmentation, generator)
        images = normalise(crops, self.mean, self.std) * kept[:, None]
        labels = self.labels[indices]
        hinted = torch.rand(len(indices), generator=generator) < self.recipe.confidence.hint_probability
        rate = self.recipe.optimiser.schedule.multiplier(self.step / self.total_steps, epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = group["full_rate"] * rate
        self.network.train()
        logits, z = self.network(images)
        if z is None:
            loss, l_c, c = F.cross_entropy(logits, labels), None, None
        else:
            parts = confidence_loss(logits, z, labels, hinted, self.controller.weight)
            loss, l_c, c = parts.total, parts.confidence.item(), torch.sigmoid(z.detach())
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        if l_c is not None:
            self.controller.update(l_c)
        if self.averaged is not None:
            self.averaged.update_parameters(self.network)
        self.step += 1
        right = int((logits.argmax(1) == labels).sum())
        summary.add(len(labels), right, l_c, c)
        return StepReport(
            epoch=epoch,
            step=self.step,
            total_steps=self.total_steps,
            loss=loss.item(),
            confidence_loss=l_c or 0.0,
            confidence_weight=self.controller.weight,
            accuracy=right / len(labels),
            images_per_second=len(labels) / (time.monotonic() - started),
        )

    @torch.no_grad()
    def accuracy(self, part: LabelledImages) -> float:
        network = self.served_network.eval()
        right = 0
        for start in range(0, len(part), EVALUATION_BATCH):
            images = torch.from_numpy(part.images[start : start + EVALUATION_BATCH])
            predicted = network(normalise(images, self.mean, self.std)).logits.argmax(1).numpy()
            right += int((predicted == part.labels[start : start + EVALUATION_BATCH]).sum())
        return right / len(part)

    def identity(self) -> dict[str, Any]:
        """What a run is: two runs with the same identity on one machine end with the same weights."""
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "seed": self.seed,
            "splits": {"fingerprint": self.splits.fingerprint, "sizes": self.splits.sizes},
            "label_names": list(self.splits.label_names),
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "image_size": self.splits.train.images.shape[1],
        }

    def save_checkpoint(self) -> None:
        """In one step: a kill leaves the old checkpoint or the new one."""
        state = {
            "network": self.network.state_dict(),
            "averaged": None if self.averaged is None else self.averaged.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "confidence_weight": self.controller.weight,
            "step": self.step,
        }
        partial = self.folder / "checkpoint.pt.partial"
        torch.save(state, partial)
        partial.replace(self.folder / "checkpoint.pt")

    def load_checkpoint(self) -> None:
        """Takes up the run in its folder, or begins one; a folder that holds another run is refused."""
        self.folder.mkdir(parents=True, exist_ok=True)
        identity, record = self.identity(), self.folder / "run.json"
        if record.is_file() and json.loads(record.read_text()) != json.loads(json.dumps(identity)):
            raise RecipeError(
                f"{self.folder} holds a run with another recipe, seed or data. Choose another --out, or delete it."
            )
        record.write_text(json.dumps(identity, indent=1) + "\n")
        checkpoint = self.folder / "checkpoint.pt"
        if not checkpoint.is_file():
            return
        state = torch.load(checkpoint, weights_only=True)
        self.network.load_state_dict(state["network"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.controller.weight = state["confidence_weight"]
        self.step = state["step"]


class EpochSummary:
    """Gathers an epoch's figures and says when confidence is collapsing."""

    def __init__(self) -> None:
        self.seen = self.right = 0
        self.confidence_losses: list[float] = []
        self.confidences: list[Tensor] = []

    def add(self, images: int, right: int, l_c: float | None, c: Tensor | None) -> None:
        self.seen += images
        self.right += right
        if l_c is not None and c is not None:
            self.confidence_losses.append(l_c)
            self.confidences.append(c)

    def report(self, epoch: int, validation: float, controller: BudgetController, learns: bool) -> EpochReport:
        l_c = float(np.mean(self.confidence_losses)) if self.confidence_losses else 0.0
        spread = float(torch.cat(self.confidences).std()) if self.confidences else 0.0
        wrong = self.seen - self.right
        report = EpochReport(epoch, self.right / max(1, self.seen), wrong, validation, l_c, spread, controller.weight)
        if learns and epoch > 0:
            report.warnings = collapse_warnings(report, self.seen, controller.budget)
        return report


def collapse_warnings(report: EpochReport, seen: int, budget: float) -> list[str]:
    """The three ways learned confidence loses its meaning (section 2.3 of the paper)."""
    found = []
    if report.confidence_spread < 0.02:
        found.append(
            f"confidence is nearly the same for every image (std {report.confidence_spread:.3f}): it cannot separate"
        )
    if not budget / 3 <= report.confidence_loss <= budget * 3:
        found.append(f"L_c is {report.confidence_loss:.3f}, far from the budget {budget}: λ does not hold it")
    if report.train_wrong < seen * 0.002:
        found.append(
            f"only {report.train_wrong} of {seen} training images were misclassified: too few to learn "
            f"confidence from; augment more or train for fewer epochs"
        )
    return found


def step_generator(seed: int, number: int, purpose: str) -> torch.Generator:
    """A generator for one step or epoch, independent of all others."""
    words = np.random.SeedSequence([seed, number, *purpose.encode()]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0] >> np.uint64(1)))


def channel_statistics(images: np.ndarray) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel of the training images, on the 0…1 scale."""
    means, squares = [], []
    for channel in range(3):
        values = np.bincount(images[..., channel].ravel(), minlength=256) / images[..., channel].size
        levels = np.arange(256) / 255
        means.append(float(values @ levels))
        squares.append(float(values @ levels**2))
    mean, square = np.asarray(means), np.asarray(squares)
    std = np.sqrt(np.maximum(square - mean**2, 1e-6))
    return torch.tensor(mean, dtype=torch.float32), torch.tensor(std, dtype=torch.float32)


def average_of(network: Classifier, decay: float) -> AveragedModel | None:
    """A moving average of weights and batch-norm statistics, where the recipe asks for one."""
    if decay == 0:
        return None
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


def make_optimiser(network: Classifier, settings: Optimiser) -> torch.optim.SGD:
    """Nesterov SGD; one-dimensional parameters are not decayed, and those of the body may have a rate of their own.

    The offsets of batch norms take a far higher rate than weights; the few of the head and the branch do not.
    """
    of_body = {id(p) for p in network.body.parameters()}
    trained = [p for p in network.parameters() if p.requires_grad]
    weights = [p for p in trained if p.ndim > 1]
    body_offsets = [p for p in trained if p.ndim <= 1 and id(p) in of_body]
    other_offsets = [p for p in trained if p.ndim <= 1 and id(p) not in of_body]
    rate = settings.learning_rate
    groups = [
        {"params": weights, "full_rate": rate, "weight_decay": settings.weight_decay},
        {"params": body_offsets, "full_rate": rate * settings.offset_rate_scale, "weight_decay": 0.0},
        {"params": other_offsets, "full_rate": rate, "weight_decay": 0.0},
    ]
    return torch.optim.SGD(groups, lr=rate, momentum=settings.momentum, nesterov=settings.momentum > 0)
