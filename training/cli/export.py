"""`confgate-train export`: a finished run becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from training.cli.options import (
    Alpha,
    CalibrationOod,
    DataRoot,
    EpsilonByOption,
    MovedData,
    Out,
    Risk,
    Tprs,
    show_bundle,
)
from training.cli.typed import typed
from training.graphs.progress import counting_images

console = Console()


def export(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="A finished run: the --out of `fit`.")],
    out: Out,
    ood: CalibrationOod = None,
    tpr: Tprs = None,
    risk: Risk = None,
    alpha: Alpha = 0.05,
    epsilon_by: EpsilonByOption = "auto",
    without_branch: Annotated[
        bool, typer.Option("--without-branch", help="The classifier alone, without a confidence.")
    ] = False,
    data_root: DataRoot = Path("data"),
    data: MovedData = None,
) -> None:
    """Calibrate thresholds, export to ONNX, evaluate what was exported, write the bundle.

    Example: `confgate-train export runs/cifar10 --out models/mine/1 --ood fashion_mnist`
    """
    from training.bundles.from_run import make_bundle
    from training.calibration.policies import Wanted
    from training.calibration.worth import worth_of_witnesses

    with counting_images(console, "exporting, calibrating and measuring"):
        bundle, calibrated = make_bundle(
            *(run, out, data_root, ood or [], Wanted(tuple(tpr or (95,)), risk, alpha), typed(context)),
            epsilon_by,
            without_branch,
            data,
        )
    for note in calibrated.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    for line in ("", *worth_of_witnesses(calibrated), ""):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    show_bundle(bundle, console, calibrated.warning)
