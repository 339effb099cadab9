"""What a training tells while it runs, and the listener that it tells it to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LOGGED_STEPS = 2_000  # metrics.jsonl and TensorBoard keep about this many steps of a run, however long it is


@dataclass(frozen=True)
class RunStart:
    """What a run is, and the step it starts from."""

    recipe: str
    dataset: str
    sizes: Mapping[str, int]  # images of each split
    notes: tuple[str, ...]  # on the data
    execution: str
    batch_size: int
    pretrained: str | None  # what was loaded as network.weights and with --init
    step: int  # more than 0 for a resumed run
    total_steps: int
    steps_per_epoch: int
    epochs: int
    budget: float | None  # β; None for a network without the branch


@dataclass
class StepReport:
    """One step, over all ranks; a line of metrics.jsonl."""

    epoch: int
    step: int
    total_steps: int
    loss: float
    confidence_loss: float
    confidence_weight: float
    accuracy: float
    images_per_second: float
    seconds_left: float

    @property
    def is_logged(self) -> bool:
        """Whether metrics.jsonl and TensorBoard keep this step; they always keep the last."""
        return self.step % max(1, self.total_steps // LOGGED_STEPS) == 0 or self.step == self.total_steps


@dataclass
class EpochReport:
    """One epoch, over all ranks; a line of metrics.jsonl."""

    epoch: int
    train_accuracy: float
    train_wrong: int
    validation_accuracy: float
    confidence_loss: float
    confidence_spread: float
    confidence_weight: float
    warnings: list[str] = field(default_factory=list)


@dataclass
class RunResult:
    """The finished run, also result.json."""

    steps: int
    seconds: float
    validation_accuracy: float
    confidence_loss: float
    confidence_weight: float
    warnings: list[str]


class Listener:
    """Hears how a training goes, on the main rank. A listener overrides what it wants to hear."""

    def started(self, start: RunStart) -> None:
        """Called once, before the first step."""

    def step_done(self, report: StepReport, learning_rate: float) -> None:
        """Called after each step."""

    def epoch_done(self, report: EpochReport, step: int, seconds: float) -> None:
        """Called after each epoch, with the steps taken and the seconds trained so far."""

    def blended(self, share: float, validation_accuracy: float, validation_loss: float) -> None:
        """Called before `finished` where weights between start and end are served: how much of them is of the end."""

    def finished(self, result: RunResult) -> None:
        """Called once, after result.json is written."""
