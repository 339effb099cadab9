"""The training loop. A run is a folder: see `run_folder`.

Killed at any moment, the same command goes on from the last checkpoint and ends with the same weights: everything a
step draws at random (order, crops, Cutout, hints) depends on the seed and the step number alone.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.data.normalise import normalisation_for, normalise
from training.data.splits import Splits
from training.errors import RecipeError
from training.learning.accuracy import accuracy
from training.learning.augment import shrink_early
from training.learning.batches import Batch, Plan, make_batches, step_generator
from training.learning.epoch_summary import EpochReport, EpochSummary, StepTotals
from training.learning.hard_images import harden
from training.learning.initial_network import fresh_network, keep_classifier, load_pretrained
from training.learning.loss import BudgetController, confidence_loss
from training.learning.optimiser import average_of, make_optimiser
from training.learning.run_folder import RunFolder
from training.learning.runtime.execution import Execution, choose_execution
from training.learning.runtime.ranks import Ranks
from training.learning.runtime.scalars import Scalars
from training.networks import Classifier
from training.recipe import Recipe

LOGGED_STEPS = 2_000  # about so many lines of metrics.jsonl are steps, however long the run


@dataclass
class StepReport:
    """What the progress display and metrics.jsonl show of one step, over all ranks."""

    epoch: int
    step: int
    total_steps: int
    loss: float
    confidence_loss: float
    confidence_weight: float
    accuracy: float
    images_per_second: float
    seconds_left: float


@dataclass
class RunResult:
    """The exit summary, also result.json."""

    steps: int
    seconds: float
    validation_accuracy: float
    confidence_loss: float
    confidence_weight: float
    warnings: list[str]


class Run:
    """A training run that can be stopped after any step and taken up again."""

    def __init__(
        self,
        recipe: Recipe,
        splits: Splits,
        seed: int,
        folder: Path,
        *,
        init: Path | None = None,
        execution: Execution | None = None,
        ranks: Ranks | None = None,
        workers: int = 0,
        checkpoint_seconds: float = 60.0,
    ) -> None:
        self.recipe, self.splits, self.seed = recipe, splits, seed
        self.folder = RunFolder(folder)
        self.execution, self.ranks = execution or choose_execution("cpu"), ranks or Ranks()
        self.checkpoint_seconds = checkpoint_seconds
        device = self.execution.device
        batch_size = recipe.optimiser.batch_size
        self.plan = Plan(seed, len(splits.train), batch_size, self.ranks.rank, self.ranks.world)
        self.plan.check()
        self.total_steps = self.plan.steps_per_epoch * recipe.optimiser.epochs
        self.batches = make_batches(splits.train, recipe, self.plan, device, workers)
        mean, std = normalisation_for(recipe.data, splits)
        self.network = fresh_network(recipe, splits, seed, mean, std)
        self.network.branch_shapes_features = recipe.confidence.shapes_features
        self.pretrained = load_pretrained(self.network, init) if init else None
        self.branch_only = recipe.optimiser.trains == "branch"
        if self.branch_only:
            keep_classifier(self.network, self.pretrained, splits.fingerprint)
        self.execution.prepare(self.network)
        self.mean, self.std = mean.to(device), std.to(device)
        self.averaged = average_of(self.network, recipe.optimiser.average_decay)
        self.optimiser = make_optimiser(self.network, recipe.optimiser)
        self.forward = self.execution.faster(self.ranks.shared(self.network, device))
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
        self.seconds = 0.0  # of training, over all processes that worked on this run one after the other
        self.summary = EpochSummary()

    @property
    def served_network(self) -> Classifier:
        """The weights to evaluate and export: the average where one is kept."""
        return self.network if self.averaged is None else self.averaged.module

    def train(self, on_step: Callable[[StepReport], None], on_epoch: Callable[[EpochReport], None]) -> RunResult | None:
        """From where `resume` left it to the end; the result on the main rank."""
        with Scalars(self.folder.path / "tensorboard", self.step, self.ranks.is_main) as scalars:
            saved_at = ended = time.monotonic()
            seconds_a_step = 0.0
            log_every = max(1, self.total_steps // LOGGED_STEPS)
            for batch in self.batches.between(self.step, self.total_steps):
                epoch = self.step // self.plan.steps_per_epoch
                totals = self._train_step(epoch, batch)
                took, ended = time.monotonic() - ended, time.monotonic()
                self.seconds += took
                seconds_a_step = took if seconds_a_step == 0 else 0.9 * seconds_a_step + 0.1 * took
                report = self._report(epoch, totals, seconds_a_step)
                if self.ranks.is_main and (self.step % log_every == 0 or self.step == self.total_steps):
                    self.folder.append({"kind": "step"} | asdict(report))
                    scalars.add_step(report, self.optimiser.param_groups[0]["lr"], self.recipe.confidence.enabled)
                on_step(report)
                if self.step % self.plan.steps_per_epoch == 0:
                    self._end_epoch(epoch, scalars, on_epoch)
                    saved_at = ended = time.monotonic()
                elif time.monotonic() - saved_at > self.checkpoint_seconds:
                    self.save_checkpoint()
                    saved_at = ended = time.monotonic()
        self.ranks.wait()
        return self._finish() if self.ranks.is_main else None

    def _train_step(self, epoch: int, batch: Batch) -> StepTotals:
        device = self.execution.device
        torch.manual_seed(batch.dropout_seed + self.ranks.rank)  # dropout, where a network has it
        images = normalise(batch.images.to(device), self.mean, self.std) * batch.kept.to(device)[:, None]
        images = shrink_early(images, self.step / self.total_steps, self.recipe.augment)
        labels, hinted = batch.labels.to(device), batch.hinted.to(device)
        ordinary = len(labels)
        if hard := round(self.recipe.confidence.hard_share * ordinary):
            images = torch.cat([images, self._hard_images(batch.images[:hard].to(device))])
            labels, hinted = torch.cat([labels, labels[:hard]]), torch.cat([hinted, hinted[:hard]])
        rate = self.recipe.optimiser.schedule.multiplier(self.step / self.total_steps, epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = group["full_rate"] * rate
        self.network.train(not self.branch_only)  # a classifier that is kept keeps its batch norms' statistics too
        with torch.autocast(device.type, torch.bfloat16, enabled=self.execution.bf16):
            logits, z = self.forward(images)
        if z is None:
            loss, l_c = F.cross_entropy(logits.float(), labels), None
        else:
            parts = confidence_loss(logits, z, labels, hinted, self.controller.weight, self.recipe.confidence.hints_for)
            # The budget is one for ordinary images, however many hard ones there are beside them.
            z = z[:ordinary]
            loss, l_c = parts.total, -F.logsigmoid(z.float()).mean()
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        totals = self._totals(logits[:ordinary].detach(), labels[:ordinary], loss, l_c, z)
        if not math.isfinite(totals.loss):
            raise RecipeError(
                f"the loss became {totals.loss} at step {self.step + 1}: training has diverged. Lower "
                f"optimiser.learning_rate; the last checkpoint is from before."
            )
        self.optimiser.step()
        if totals.confidence_loss is not None:
            self.controller.update(totals.confidence_loss)
        if self.averaged is not None:
            self.averaged.update_parameters(self.network)
        self.step += 1
        self.summary.add(totals)
        return totals

    def _hard_images(self, images: Tensor) -> Tensor:
        generator = step_generator(self.seed, self.step, f"hard {self.ranks.rank}")
        return normalise(harden(images, generator), self.mean, self.std)

    def _totals(self, logits: Tensor, labels: Tensor, loss: Tensor, l_c: Tensor | None, z: Tensor | None) -> StepTotals:
        """One step over all ranks. λ follows the global L_c, so all ranks keep the same λ."""
        images = len(labels)
        c = torch.zeros(0) if z is None else torch.sigmoid(z.detach().double())
        local = [
            images,
            int((logits.argmax(1) == labels).sum()),
            loss.item() * images,
            0.0 if l_c is None else l_c.item() * images,
            c.sum().item(),
            (c**2).sum().item(),
        ]
        seen, right, loss_sum, l_c_sum, c_sum, c_square_sum = self.ranks.total(local, self.execution.device)
        mean_l_c = None if l_c is None else l_c_sum / seen
        return StepTotals(int(seen), int(right), loss_sum / seen, mean_l_c, c_sum, c_square_sum)

    def _report(self, epoch: int, totals: StepTotals, seconds_a_step: float) -> StepReport:
        return StepReport(
            epoch=epoch,
            step=self.step,
            total_steps=self.total_steps,
            loss=totals.loss,
            confidence_loss=totals.confidence_loss or 0.0,
            confidence_weight=self.controller.weight,
            accuracy=totals.right / totals.images,
            images_per_second=totals.images / seconds_a_step,
            seconds_left=(self.total_steps - self.step) * seconds_a_step,
        )

    def _end_epoch(self, epoch: int, scalars: Scalars, on_epoch: Callable[[EpochReport], None]) -> None:
        summary, self.summary = self.summary, EpochSummary()
        if not self.ranks.is_main:
            return
        started = time.monotonic()
        right = accuracy(self.served_network, self.splits.validation, self.mean, self.std)
        self.seconds += time.monotonic() - started
        report = summary.report(epoch, right, self.controller, self.recipe.confidence.enabled)
        self.folder.append({"kind": "epoch", "step": self.step} | asdict(report))
        scalars.add_epoch(report, self.step, self.recipe.confidence.enabled)
        self.save_checkpoint()
        on_epoch(report)

    def _finish(self) -> RunResult:
        epochs = list(self.folder.records("epoch"))
        warnings = [f"epoch {record['epoch'] + 1}: {text}" for record in epochs for text in record["warnings"]]
        last = epochs[-1]
        result = RunResult(
            steps=self.step,
            seconds=round(self.seconds, 1),
            validation_accuracy=last["validation_accuracy"],
            confidence_loss=last["confidence_loss"],
            confidence_weight=last["confidence_weight"],
            warnings=warnings,
        )
        self.folder.write_result(asdict(result))
        return result

    def identity(self) -> dict[str, Any]:
        """What a run is: two runs with the same identity on one machine end with the same weights."""
        pretrained = self.pretrained
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "seed": self.seed,
            "splits": {"fingerprint": self.splits.fingerprint, "sizes": self.splits.sizes},
            "label_names": list(self.splits.label_names),
            "mean": self.mean.tolist(),
            "std": self.std.tolist(),
            "image_size": self.splits.train.images.shape[1],
            "init": pretrained
            and {"file": pretrained.file, "sha256": pretrained.sha256, "made_by": list(pretrained.made_by)},
        }

    def save_checkpoint(self) -> None:
        """Everything that is not decided by the seed and the step; by the main rank only."""
        if not self.ranks.is_main:
            return
        self.folder.save(
            {
                "network": self.network.state_dict(),
                "averaged": None if self.averaged is None else self.averaged.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "confidence_weight": self.controller.weight,
                "step": self.step,
                "summary": self.summary.state(),
                "seconds": self.seconds,
                "execution": self.execution.description,
            }
        )

    def resume(self) -> str | None:
        """Takes up the run in its folder, or begins one; says what can no longer be promised of it."""
        if self.ranks.is_main:
            self.folder.claim(self.identity())
        self.ranks.wait()
        state = self.folder.load(self.execution.device)
        self.ranks.wait()  # nobody may write a checkpoint while another still reads
        if state is None:
            if self.ranks.is_main:
                self.folder.forget_after(0)
            return None
        self.network.load_state_dict(state["network"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.controller.weight = state["confidence_weight"]
        self.step = state["step"]
        self.summary = EpochSummary(**state.get("summary", {}))
        self.seconds = state.get("seconds", 0.0)
        if self.ranks.is_main:
            self.folder.forget_after(self.step)
        before = state.get("execution", "cpu")
        if before != self.execution.description:
            return (
                f"this run was begun with {before} and goes on with {self.execution.description}: its weights will not "
                f"be bit-identical to those of an uninterrupted run"
            )
        return None
