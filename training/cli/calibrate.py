"""`confgate-train calibrate`: the policies of a run or a bundle side by side, and a bundle's next version."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from service.model.bundle import Bundle, Default, load_bundle
from service.model.command_line import CommandLine
from training.cli.options import Alpha, CalibrationOod, DataRoot, EpsilonByOption, Risk, Tprs, show_bundle
from training.cli.typed import typed
from training.errors import DataError
from training.graphs.progress import counting_images

if TYPE_CHECKING:  # imported late to keep --help fast
    from collections.abc import Mapping

    from training.calibration.calibrate import Calibrated, EpsilonBy, Traffic
    from training.calibration.open_graphs import OpenGraphs
    from training.calibration.policies import Wanted
    from training.calibration.recommend import Purpose, Recommendation

console = Console()


@dataclass(frozen=True)
class _Options:
    """The options of the command."""

    data: str | None
    ood: list[str]
    data_root: Path
    traffic: Path | None
    target_rejection: float | None
    use_recommended: Literal["ood", "mistakes"] | None
    out: Path | None
    command: CommandLine

    def __post_init__(self) -> None:
        if (self.traffic is None) != (self.target_rejection is None):
            raise DataError("--traffic and --target-rejection belong together: give both, or neither.")
        if self.use_recommended == "ood" and not self.ood:
            raise DataError("--use-recommended ood needs out-of-distribution images. Name a set with --ood.")
        if self.use_recommended is not None and self.target_rejection is not None:
            raise DataError("--use-recommended and --target-rejection would each set the default: give one of them.")

    @property
    def only_traffic(self) -> bool:
        """Only unlabelled images are given: they are enough for a target rejection rate."""
        return self.traffic is not None and self.data is None and not self.ood


def calibrate(
    context: typer.Context,
    what: Annotated[Path, typer.Argument(metavar="RUN_OR_BUNDLE", help="A finished run, or models/NAME/VERSION.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Images a bundle's model has not seen: FOLDER with one sub-folder for each label (unlabelled ones "
            "give refusal rates only), or the NAME of a set. For a run: where the folder of its images is now. "
            "[default: the calibration split of what it was trained on]"
        ),
    ] = None,
    ood: CalibrationOod = None,
    traffic: Annotated[
        Path | None, typer.Option(help="Unlabelled images of your own traffic: any folder of image files.")
    ] = None,
    target_rejection: Annotated[
        float | None, typer.Option(help="Share of --traffic that policy target_rejection shall refuse, such as 0.1.")
    ] = None,
    tpr: Tprs = None,
    risk: Risk = None,
    alpha: Alpha = 0.05,
    epsilon_by: EpsilonByOption = "auto",
    use_recommended: Annotated[
        Literal["ood", "mistakes"] | None,
        typer.Option(help="Make the score recommended for this purpose the default, with its policy."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write a new version: models/NAME/VERSION.")] = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Show what each policy of each score refuses, and write it as a new version without training again.

    Unlabelled images are enough for a rejection rate:
    `confgate-train calibrate models/cifar10/5 --traffic examples --target-rejection 0.5`

    With the images it was trained on, and out-of-distribution images, under data/:
    `confgate-train calibrate models/cifar10/5 --ood fashion_mnist --out models/cifar10/6`

    With photos of your own, in one sub-folder for each label:
    `confgate-train calibrate models/cifar10/5 --data photos --risk 0.05 --out models/cifar10/6`
    """
    from training.calibration.policies import Wanted

    options = _Options(data, ood or [], data_root, traffic, target_rejection, use_recommended, out, typed(context))
    wanted = Wanted(tuple(tpr or (95,)), risk, alpha)
    if (what / "bundle.json").is_file():
        from training.bundles.next_version import check_target

        bundle = load_bundle(what)
        if out is not None:
            check_target(bundle, out)
        written = (
            _only_traffic(bundle, options) if options.only_traffic else _bundle(bundle, options, wanted, epsilon_by)
        )
    elif (what / "run.json").is_file():
        written = _run(what, options, wanted, epsilon_by)
    else:
        raise DataError(f"{what} holds neither a run.json nor a bundle.json. Expected a run or models/NAME/VERSION.")
    if written is None:
        console.print("nothing was written; --out models/NAME/VERSION writes a new version", highlight=False)
    else:
        _print("")
        show_bundle(written, console)


def _only_traffic(bundle: Bundle, options: _Options) -> Bundle | None:
    from training.bundles.evidence import read_traffic
    from training.bundles.next_version import (
        opened_bundle,
        with_target_rejection,
        write_with_target_rejection,
    )
    from training.calibration.table import as_text, pair_rows, pairs_as_text, policy_rows

    assert options.traffic is not None
    assert options.target_rejection is not None
    opened = opened_bundle(bundle)
    images = read_traffic(options.traffic, bundle, opened.shape, options.target_rejection)
    for note in images.notes:
        _print(f"note: {note}")
    scores, pairs = with_target_rejection(bundle, opened, images)
    if pairs is not None:
        _print(pairs_as_text(pair_rows(scores, pairs)))
        _print("")
    _print(as_text(policy_rows(scores)))
    if options.out is None:
        return None
    return write_with_target_rejection(bundle, opened, scores, pairs, images, options.out, options.command)


def _bundle(bundle: Bundle, options: _Options, wanted: "Wanted", epsilon_by: "EpsilonBy") -> Bundle | None:
    from training.bundles.evidence import read_evidence
    from training.bundles.next_version import prepare, write_recalibrated
    from training.calibration.calibrate import calibrate_graphs

    evidence = read_evidence(bundle, options.data, options.data_root, options.ood)
    with counting_images(console, "calibrating"):
        prepared = prepare(bundle, evidence)
        traffic = _traffic(options, bundle, prepared.opened)
        calibrated = calibrate_graphs(prepared.opened, prepared.evidence, wanted, epsilon_by, traffic)
    default = _show(calibrated, () if prepared.note is None else (prepared.note,), options)
    if options.out is None:
        return None
    with counting_images(console, "measuring"):
        return write_recalibrated(bundle, prepared, calibrated, default, options.out, options.command)


def _run(folder: Path, options: _Options, wanted: "Wanted", epsilon_by: "EpsilonBy") -> Bundle | None:
    from training.bundles.from_run import export_run, write_run
    from training.bundles.write import check_new
    from training.calibration.calibrate import calibrate_graphs

    if options.out is not None:
        check_new(options.out)
    moved = None if options.data is None else Path(options.data)
    exported = export_run(folder, options.data_root, options.ood, data=moved)
    with counting_images(console, "calibrating"):
        calibrated = calibrate_graphs(
            exported.opened, exported.evidence, wanted, epsilon_by, _traffic(options, None, exported.opened)
        )
    default = _show(calibrated, exported.notes, options)
    if options.out is None:
        return None
    with counting_images(console, "measuring"):
        return write_run(exported, calibrated, options.out, options.command, default)


def _traffic(options: _Options, bundle: Bundle | None, opened: "OpenGraphs") -> "Traffic | None":
    from training.bundles.evidence import read_traffic

    if options.traffic is None or options.target_rejection is None:
        return None
    return read_traffic(options.traffic, bundle, opened.shape, options.target_rejection)


def _show(calibrated: "Calibrated", notes: tuple[str, ...], options: _Options) -> Default:
    """Prints the tables, what was left out and what is recommended; returns the default of a new version."""
    from training.calibration.policies import TARGET_REJECTION
    from training.calibration.recommend import recommendations
    from training.calibration.table import as_text, pair_rows, pairs_as_text, policy_rows

    measured = (calibrated.in_distribution, calibrated.right, calibrated.ood)
    _print(pairs_as_text(pair_rows(calibrated.scores, calibrated.pairs, *measured)))
    _print("")
    _print(as_text(policy_rows(calibrated.scores, *measured)))
    for note in (*notes, *calibrated.notes):
        _print(f"note: {note}")
    found = recommendations(calibrated, next(iter(calibrated.scores)))
    for recommendation in found.values():
        _print(str(recommendation))
    recommended = None if options.use_recommended is None else _recommended(options.use_recommended, found, calibrated)
    if recommended is not None:
        chosen = recommended
    elif options.target_rejection is not None:
        chosen = Default(policy=TARGET_REJECTION)
    else:
        chosen = calibrated.default
        if calibrated.warning is not None:
            console.print(f"WARNING: {calibrated.warning}", style="bold red", highlight=False, soft_wrap=True)
    what = "familiarity and certainty" if chosen.score is None else f"score {chosen.score}"
    _print(f"default: {what} under policy {chosen.policy}")
    return chosen


def _recommended(
    purpose: "Purpose", found: "Mapping[Purpose, Recommendation]", calibrated: "Calibrated"
) -> Default | None:
    """The recommended default; None, with a note, where the images did not allow its policy."""
    from training.calibration.recommend import POLICIES

    if purpose in found:
        default = found[purpose].default
        if default.score is not None and default.policy in calibrated.scores[default.score].policies:
            return default
    _print(
        f"note: --use-recommended {purpose} has no effect: the images do not allow policy '{POLICIES[purpose]}'. Give "
        f"--data more images."
    )
    return None


def _print(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
