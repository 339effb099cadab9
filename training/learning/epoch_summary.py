"""The figures of an epoch, summed step by step, and warnings when learned confidence collapses."""

import math
from dataclasses import asdict, dataclass

from training.learning.loss import BudgetController
from training.learning.runtime.listener import EpochReport


@dataclass
class StepTotals:
    """Sums over the images of one step, over all ranks."""

    images: int
    right: int
    loss: float  # mean over the images
    confidence_loss: float | None  # mean over the images; None for the baseline
    confidence_sum: float = 0.0
    confidence_square_sum: float = 0.0


@dataclass
class EpochSummary:
    """Plain sums, so that a checkpoint in the middle of an epoch can hold them."""

    steps: int = 0
    seen: int = 0
    right: int = 0
    confidence_loss_sum: float = 0.0
    confidence_sum: float = 0.0
    confidence_square_sum: float = 0.0

    def add(self, step: StepTotals) -> None:
        self.steps += 1
        self.seen += step.images
        self.right += step.right
        self.confidence_loss_sum += step.confidence_loss or 0.0
        self.confidence_sum += step.confidence_sum
        self.confidence_square_sum += step.confidence_square_sum

    def state(self) -> dict[str, float]:
        return asdict(self)

    def report(self, epoch: int, validation: float, controller: BudgetController, learns: bool) -> EpochReport:
        """The whole epoch. `learns` says whether there is a branch to warn of."""
        variance = (self.confidence_square_sum - self.confidence_sum**2 / self.seen) / max(1, self.seen - 1)
        report = EpochReport(
            epoch=epoch,
            train_accuracy=self.right / self.seen,
            train_wrong=self.seen - self.right,
            validation_accuracy=validation,
            confidence_loss=self.confidence_loss_sum / self.steps,
            confidence_spread=math.sqrt(max(0.0, variance)),
            confidence_weight=controller.weight,
        )
        if learns and epoch > 0:  # in the first epoch nothing has converged yet
            report.warnings = collapse_warnings(report, self.seen, controller.budget)
        return report


def collapse_warnings(report: EpochReport, seen: int, budget: float) -> list[str]:
    """One for each way in which learned confidence has lost its meaning (section 2.3 of the paper)."""
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
