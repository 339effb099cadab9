"""TensorBoard scalars of a run: `tensorboard --logdir RUN/tensorboard`."""

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from torch.utils.tensorboard import SummaryWriter

if TYPE_CHECKING:
    from training.learning.epoch_summary import EpochReport
    from training.learning.loop import StepReport


class Scalars:
    """Writes on the main rank only; a resumed run hides what the killed one wrote after its last checkpoint."""

    def __init__(self, folder: Path, first_step: int, is_main: bool) -> None:
        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1) if is_main else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def add_step(self, report: "StepReport", learning_rate: float, learns: bool) -> None:
        figures = {
            "train/loss": report.loss,
            "train/accuracy": report.accuracy,
            "train/learning_rate": learning_rate,
            "speed/images_per_second": report.images_per_second,
        }
        if learns:
            figures |= {"confidence/L_c": report.confidence_loss, "confidence/lambda": report.confidence_weight}
        self._add(figures, report.step)

    def add_epoch(self, report: "EpochReport", step: int, learns: bool) -> None:
        figures = {
            "epoch/train_accuracy": report.train_accuracy,
            "epoch/validation_accuracy": report.validation_accuracy,
        }
        if learns:
            figures["confidence/spread"] = report.confidence_spread
        self._add(figures, step)

    def _add(self, figures: dict[str, float], step: int) -> None:
        if self._writer is not None:
            for name, value in figures.items():
                self._writer.add_scalar(name, value, step)
