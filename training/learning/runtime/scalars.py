"""TensorBoard scalars of a run: `tensorboard --logdir RUN/tensorboard`."""

from contextlib import suppress
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from training.learning.run_folder import writing
from training.learning.runtime.listener import EpochReport, Listener, RunStart, StepReport


class Scalars(Listener):
    """Writes the scalars. A resumed run hides those that the killed process wrote after its last checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None
        self._has_branch = False

    def started(self, start: RunStart) -> None:
        with writing(self._folder):
            self._writer = SummaryWriter(str(self._folder), purge_step=start.step + 1)
        self._has_branch = start.budget is not None

    def step_done(self, report: StepReport, learning_rate: float) -> None:
        if not report.is_logged:
            return
        figures = {
            "train/loss": report.loss,
            "train/accuracy": report.accuracy,
            "train/learning_rate": learning_rate,
            "speed/images_per_second": report.images_per_second,
        }
        if self._has_branch:
            figures |= {"confidence/L_c": report.confidence_loss, "confidence/lambda": report.confidence_weight}
        self._add(figures, report.step)

    def epoch_done(self, report: EpochReport, step: int, seconds: float) -> None:  # noqa: ARG002  (a listener's signature)
        figures = {
            "epoch/train_accuracy": report.train_accuracy,
            "epoch/validation_accuracy": report.validation_accuracy,
        }
        if self._has_branch:
            figures["confidence/spread"] = report.confidence_spread
        self._add(figures, step)

    def close(self) -> None:
        """Flushes the file; also after a training that failed."""
        if self._writer is not None:
            with suppress(OSError):  # a full disk ended the training, or metrics.jsonl holds the same figures
                self._writer.close()

    def _add(self, figures: dict[str, float], step: int) -> None:
        assert self._writer is not None  # a training tells first that it has started
        with writing(self._folder):
            for name, value in figures.items():
                self._writer.add_scalar(name, value, step)
