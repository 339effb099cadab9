"""What learns in a run: the network, its moving average, the optimiser and λ. `Learner.learn` is one training step."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from training.data.normalise import normalise
from training.errors import RecipeError
from training.learning.augmentation.batch import shrink_early
from training.learning.augmentation.hard_images import harden
from training.learning.augmentation.mix import mix, next_of
from training.learning.batches import Batch, step_generator
from training.learning.epoch_summary import StepTotals
from training.learning.loss import BudgetController, confidence_loss
from training.learning.optimiser import average_of, make_optimiser
from training.learning.runtime.execution import Execution
from training.learning.runtime.ranks import Ranks
from training.networks import Classifier
from training.recipe import Recipe


class Learner:
    """Holds all that training changes; a checkpoint keeps its `state`."""

    def __init__(
        self,
        network: Classifier,
        recipe: Recipe,
        *,
        mean: Tensor,
        std: Tensor,
        seed: int,
        total_steps: int,
        execution: Execution,
        ranks: Ranks,
        class_weights: Tensor | None = None,
    ) -> None:
        self.network, self.recipe, self.seed, self.total_steps = network, recipe, seed, total_steps
        self.execution, self.ranks = execution, ranks
        self.mean, self.std = mean.to(execution.device), std.to(execution.device)
        self.class_weights = None if class_weights is None else class_weights.to(execution.device)
        execution.prepare(network)
        network.branch_shapes_features = recipe.confidence.shapes_features
        self.averaged = average_of(network, recipe.optimiser.average_decay)
        self.optimiser = make_optimiser(network, recipe.optimiser)
        self.forward = execution.faster(ranks.shared(network, execution.device))
        settings = recipe.confidence
        self.controller = BudgetController(
            settings.budget,
            settings.initial_weight,
            total_steps,
            settings.rule,
            settings.speed,
            settings.relative_step,
        )

    @property
    def served_network(self) -> Classifier:
        """The weights to evaluate and export: the average where one is kept."""
        served = self.network if self.averaged is None else self.averaged.module
        assert isinstance(served, Classifier)
        return served

    @property
    def learning_rate(self) -> float:
        """The rate of the last step, for the weights."""
        rate: float = self.optimiser.param_groups[0]["lr"]
        return rate

    def learn(self, batch: Batch, step: int, epoch: int) -> StepTotals:
        """Takes one step: forward, loss, backward, weights, λ, average."""
        device = self.execution.device
        torch.manual_seed(batch.dropout_seed + self.ranks.rank)  # dropout, where a network has it
        self._set_learning_rate(step, epoch)
        # A classifier that does not learn also keeps the statistics of its batch norms.
        self.network.train(self.recipe.optimiser.trains == "network")
        images, labels, hinted = self._inputs(batch, step)
        mixed = mix(images, self.recipe.augment, step_generator(self.seed, step, f"mix {self.ranks.rank}"))
        with torch.autocast(device.type, torch.bfloat16, enabled=self.execution.bf16):
            logits, z = self.forward(mixed.images)
        loss = self._task_loss(logits, labels, mixed.own) if z is None else self._loss(logits, z, labels, hinted)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        # Hard images come after the ordinary ones. They count neither for accuracy nor for the budget.
        ordinary = len(batch.labels)
        totals = self._totals(logits[:ordinary], None if z is None else z[:ordinary], labels[:ordinary], loss)
        if not math.isfinite(totals.loss):
            raise self._diverged(f"the loss became {totals.loss}", step + 1)
        self.optimiser.step()
        if totals.confidence_loss is not None:
            self.controller.update(totals.confidence_loss)
        if self.averaged is not None:
            self.averaged.update_parameters(self.network)
        return totals

    def check_finite(self, step: int) -> None:
        """Fails if a weight is NaN or infinite, which the loss shows only one step later."""
        for name, value in self.network.state_dict().items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise self._diverged(f"{name} is no longer finite", step)

    def _diverged(self, what: str, step: int) -> RecipeError:
        rate = self.recipe.optimiser.learning_rate
        return RecipeError(
            f"{what} at step {step}: training has diverged. That was not saved; the last checkpoint, if there is one, "
            f"is from before. Lower the rate, and train in another folder: --set optimiser.learning_rate={rate / 2:g} "
            f"--out …"
        )

    def _set_learning_rate(self, step: int, epoch: int) -> None:
        multiplier = self.recipe.optimiser.schedule.multiplier(step / self.total_steps, epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = group["full_rate"] * multiplier

    def _inputs(self, batch: Batch, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Normalised images, their labels, and which may ask for hints; hard images come last."""
        device = self.execution.device
        images = normalise(batch.images.to(device), self.mean, self.std) * batch.kept.to(device)[:, None]
        images = shrink_early(images, step / self.total_steps, self.recipe.augment)
        labels, hinted = batch.labels.to(device), batch.hinted.to(device)
        if hard := round(self.recipe.confidence.hard_share * len(labels)):
            generator = step_generator(self.seed, step, f"hard {self.ranks.rank}")
            hardened = harden(batch.images[:hard].to(device), generator)
            images = torch.cat([images, normalise(hardened, self.mean, self.std)])
            labels, hinted = torch.cat([labels, labels[:hard]]), torch.cat([hinted, hinted[:hard]])
        return images, labels, hinted

    def _task_loss(self, logits: Tensor, labels: Tensor, own: float) -> Tensor:
        """Without a branch; `own` is how much of each image is its own."""
        smoothing = self.recipe.optimiser.label_smoothing

        def of(wanted: Tensor) -> Tensor:
            each = F.cross_entropy(
                logits.float(), wanted, self.class_weights, reduction="none", label_smoothing=smoothing
            )
            return each.mean()

        return of(labels) if own == 1 else own * of(labels) + (1 - own) * of(next_of(labels))

    def _loss(self, logits: Tensor, z: Tensor, labels: Tensor, hinted: Tensor) -> Tensor:
        hints_for = self.recipe.confidence.hints_for
        return confidence_loss(logits, z, labels, hinted, self.controller.weight, hints_for, self.class_weights).total

    @torch.no_grad()
    def _totals(self, logits: Tensor, z: Tensor | None, labels: Tensor, loss: Tensor) -> StepTotals:
        """The step over all ranks. λ follows the L_c of all, so that all ranks keep the same λ."""
        images = len(labels)
        c = torch.zeros(0) if z is None else torch.sigmoid(z.double())
        local = [
            images,
            int((logits.argmax(1) == labels).sum()),
            loss.item() * images,
            0.0 if z is None else -F.logsigmoid(z.float()).mean().item() * images,
            c.sum().item(),
            (c**2).sum().item(),
        ]
        seen, right, loss_sum, l_c_sum, c_sum, c_square_sum = self.ranks.total(local, self.execution.device)
        mean_l_c = None if z is None else l_c_sum / seen
        return StepTotals(int(seen), int(right), loss_sum / seen, mean_l_c, c_sum, c_square_sum)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            "network": self.network.state_dict(),
            "averaged": None if self.averaged is None else self.averaged.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "confidence_weight": self.controller.weight,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes back to where a checkpoint was written."""
        self.network.load_state_dict(state["network"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.controller.weight = state["confidence_weight"]
