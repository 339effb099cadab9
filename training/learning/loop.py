"""The training loop. A run is a folder: see `run_folder`.

A run that is killed at any moment goes on from its last checkpoint with the same command, and ends with the same
weights: everything a step draws at random (order, crops, Cutout, hints) depends on the seed and the step number alone.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from service.model.command_line import CommandLine
from training.data.normalise import normalisation_for
from training.data.splits import Splits
from training.learning.accuracy import accuracy, accuracy_and_loss
from training.learning.balance import class_weights
from training.learning.batches import Batch, Plan, lost_workers_explained, make_batches
from training.learning.blend import Blend, blends
from training.learning.epoch_summary import EpochSummary, StepTotals
from training.learning.fresh_network import fresh_network
from training.learning.identity import identity_of
from training.learning.learner import Learner
from training.learning.pretrained import keep_classifier, load_pretrained
from training.learning.run_folder import RunFolder
from training.learning.runtime.execution import Execution, choose_execution
from training.learning.runtime.interrupt import remembered_interrupt
from training.learning.runtime.listener import Listener, RunResult, RunStart, StepReport
from training.learning.runtime.ranks import Ranks
from training.networks import Classifier
from training.networks.weights import load_weights
from training.recipe import Recipe


class Run:
    """A training run that can be stopped after any step and resumed."""

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
        command: CommandLine | None = None,
    ) -> None:
        self.recipe, self.splits, self.seed = recipe, splits, seed
        self.folder = RunFolder(folder)
        self.execution, self.ranks = execution or choose_execution("cpu"), ranks or Ranks()
        self.checkpoint_seconds = checkpoint_seconds
        self.command = command
        batch_size = recipe.optimiser.batch_size
        balance, labels = recipe.optimiser.balance, splits.train.labels
        balanced = torch.from_numpy(labels) if balance == "sampler" else None
        self.plan = Plan(seed, len(splits.train), batch_size, self.ranks.rank, self.ranks.world, balanced)
        self.plan.check()
        self.total_steps = self.plan.steps_per_epoch * recipe.optimiser.epochs
        self.batches = make_batches(splits.train, recipe, self.plan, self.execution.device, workers)
        self.mean, self.std = normalisation_for(recipe.data, splits)
        network = fresh_network(recipe, splits, seed, self.mean, self.std)
        named = recipe.network.weights
        self.weights = load_weights(network, recipe.network.name, named) if named else None
        self.pretrained = load_pretrained(network, init) if init else None
        if recipe.optimiser.trains == "branch":
            keep_classifier(network, self.pretrained, splits)
        start = network.state_dict() if recipe.optimiser.blend else {}
        self.start = {name: value.clone() for name, value in start.items()}
        self.served: dict[str, Tensor] | None = None  # the blend, once training is done
        self.learner = Learner(
            network,
            recipe,
            mean=self.mean,
            std=self.std,
            seed=seed,
            total_steps=self.total_steps,
            execution=self.execution,
            ranks=self.ranks,
            class_weights=class_weights(labels, len(splits.label_names)) if balance == "weights" else None,
        )
        self.step = 0
        self.seconds = 0.0  # of training, summed over all processes that worked on this run one after the other
        self.summary = EpochSummary()

    def train(self, listeners: Sequence[Listener] = ()) -> None:
        """Trains from the step where the run stands to its end; the main rank tells the listeners how it goes."""
        heard = listeners if self.ranks.is_main else ()
        for listener in heard:
            listener.started(self._start())
        with lost_workers_explained(), remembered_interrupt() as check_interrupt:
            self._train_steps(heard, check_interrupt)
        self.ranks.wait()
        if self.ranks.is_main:
            self._finish(heard)

    def _train_steps(self, heard: Sequence[Listener], check_interrupt: Callable[[], None]) -> None:
        saved_at = ended = time.monotonic()
        seconds_a_step = 0.0
        for batch in self.batches.between(self.step, self.total_steps):
            epoch = self.step // self.plan.steps_per_epoch
            totals = self._train_step(epoch, batch)
            took, ended = time.monotonic() - ended, time.monotonic()
            self.seconds += took
            seconds_a_step = took if seconds_a_step == 0 else 0.9 * seconds_a_step + 0.1 * took
            self._report_step(epoch, totals, seconds_a_step, heard)
            epoch_ended = self.step % self.plan.steps_per_epoch == 0
            if epoch_ended:
                self._end_epoch(epoch, heard)
            if epoch_ended or time.monotonic() - saved_at > self.checkpoint_seconds:
                self.save_checkpoint()
                saved_at = ended = time.monotonic()
            check_interrupt()

    def _train_step(self, epoch: int, batch: Batch) -> StepTotals:
        totals = self.learner.learn(batch, self.step, epoch)
        self.step += 1
        self.summary.add(totals)
        return totals

    def _report_step(
        self, epoch: int, totals: StepTotals, seconds_a_step: float, listeners: Sequence[Listener]
    ) -> None:
        report = StepReport(
            epoch=epoch,
            step=self.step,
            total_steps=self.total_steps,
            loss=totals.loss,
            confidence_loss=totals.confidence_loss or 0.0,
            confidence_weight=self.learner.controller.weight,
            accuracy=totals.right / totals.images,
            images_per_second=totals.images / seconds_a_step,
            seconds_left=(self.total_steps - self.step) * seconds_a_step,
        )
        if self.ranks.is_main and report.is_logged:
            self.folder.append({"kind": "step"} | asdict(report))
        for listener in listeners:
            listener.step_done(report, self.learner.learning_rate)

    def _end_epoch(self, epoch: int, listeners: Sequence[Listener]) -> None:
        summary, self.summary = self.summary, EpochSummary()
        if not self.ranks.is_main:
            return
        started = time.monotonic()
        validation = accuracy(self.learner.served_network, self.splits.validation, self.learner.mean, self.learner.std)
        self.seconds += time.monotonic() - started
        report = summary.report(epoch, validation, self.learner.controller, self.recipe.confidence.enabled)
        self.folder.append({"kind": "epoch", "step": self.step} | asdict(report))
        for listener in listeners:
            listener.epoch_done(report, self.step, self.seconds)

    def _finish(self, listeners: Sequence[Listener]) -> None:
        epochs = list(self.folder.records("epoch"))
        if self.recipe.optimiser.blend and self.served is None:
            self._blend(listeners)
        warnings = [f"epoch {record['epoch'] + 1}: {text}" for record in epochs for text in record["warnings"]]
        last = epochs[-1]
        result = RunResult(
            steps=self.step,
            seconds=round(self.seconds, 1),
            validation_accuracy=self._served_accuracy(last["validation_accuracy"]),
            confidence_loss=last["confidence_loss"],
            confidence_weight=last["confidence_weight"],
            warnings=warnings,
        )
        self.folder.write_result(asdict(result))
        for listener in listeners:
            listener.finished(result)

    def _blend(self, listeners: Sequence[Listener]) -> None:
        """Chooses weights between the start and the end, and keeps them in the checkpoint."""
        best: Blend | None = None
        for found in blends(self.start, self.learner.served_network, self._measured):
            record = {name: getattr(found, name) for name in ("share", "validation_accuracy", "validation_loss")}
            self.folder.append({"kind": "blend", "step": self.step} | record)
            if best is None or found.validation_loss < best.validation_loss:
                best = found
        assert best is not None  # there are shares to try
        for listener in listeners:
            listener.blended(best.share, best.validation_accuracy, best.validation_loss)
        self.served = best.state
        self.save_checkpoint()

    def _served_accuracy(self, of_last_epoch: float) -> float:
        """On the validation images, of the weights that will be exported."""
        if self.served is None:
            return of_last_epoch
        network = copy.deepcopy(self.learner.served_network)
        network.load_state_dict(self.served)
        return self._measured(network)[0]

    def _measured(self, network: Classifier) -> tuple[float, float]:
        return accuracy_and_loss(network, self.splits.validation, self.learner.mean, self.learner.std)

    def _start(self) -> RunStart:
        return RunStart(
            recipe=self.recipe.name,
            dataset=self.recipe.data.dataset,
            sizes=self.splits.sizes,
            notes=self.splits.notes,
            execution=self.execution.description,
            batch_size=self.plan.batch_size,
            pretrained="\n".join(loaded.describe() for loaded in (self.weights, self.pretrained) if loaded) or None,
            step=self.step,
            total_steps=self.total_steps,
            steps_per_epoch=self.plan.steps_per_epoch,
            epochs=self.recipe.optimiser.epochs,
            budget=self.recipe.confidence.budget if self.recipe.confidence.enabled else None,
        )

    def identity(self) -> dict[str, Any]:
        """What this run is."""
        return identity_of(
            *(self.recipe, self.seed, self.splits, self.mean, self.std),
            *(self.weights, self.pretrained, self.command),
        )

    def save_checkpoint(self) -> None:
        """Saves everything that does not follow from the seed and the step; only the main rank writes.

        Weights that are no longer finite are not saved: no training could go on from them.
        """
        if not self.ranks.is_main:
            return
        self.learner.check_finite(self.step)
        self.folder.save(
            {
                **self.learner.state(),
                **({} if self.served is None else {"served": self.served}),
                "step": self.step,
                "summary": self.summary.state(),
                "seconds": self.seconds,
                "execution": self.execution.description,
            }
        )

    def resume(self) -> str | None:
        """Resumes the run in its folder, or begins one; returns a warning if its weights will not be reproducible."""
        if self.ranks.is_main:
            self.folder.claim(self.identity())
        self.ranks.wait()
        state = self.folder.load(self.execution.device)
        self.ranks.wait()  # no rank may write a checkpoint while another still reads
        if state is None:
            if self.ranks.is_main:
                self.folder.forget_after(0)
            return None
        self.learner.load_state(state)
        self.step = state["step"]
        self.summary = EpochSummary(**state.get("summary", {}))
        self.seconds = state.get("seconds", 0.0)
        self.served = state.get("served")
        if self.ranks.is_main:
            self.folder.forget_after(self.step)
        before = state.get("execution", "cpu")
        if before != self.execution.description:
            return (
                f"this run was begun with {before} and goes on with {self.execution.description}: its weights will not "
                f"be bit-identical to those of an uninterrupted run"
            )
        return None
