"""`confgate-train evaluate`: bundles measured on out-of-distribution sets."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from training.cli.options import OOD, DataRoot, DeviceOption, Limit, MovedData, OwnCalibration, OwnTest, RunFolder
from training.cli.run_or_bundle import measured_bundle
from training.cli.typed import typed
from training.errors import DataError

console = Console()


def evaluate(
    context: typer.Context,
    bundles: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="BUNDLE_OR_RUN...",
            help="Bundles, also imported ones; finished runs are exported first. With --baseline they need a "
            "confidence branch.",
        ),
    ] = None,
    ood: Annotated[list[str] | None, OOD] = None,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(help="The network trained without the branch; one for each bundle, in the same order."),
    ] = None,
    data_root: DataRoot = Path("data"),
    out: Annotated[Path, typer.Option(help="Folder for tables and kept scores; the same one resumes.")] = Path(
        "evaluation"
    ),
    epsilon: Annotated[
        Literal["per-set", "per-model", "bundle"],
        typer.Option(help="ε of preprocessed scores: chosen for each set (the paper), for all sets, or as served."),
    ] = "per-set",
    preprocessed: Annotated[
        bool, typer.Option(help="Also ODIN and confidence + preprocessing, which take most of the time.")
    ] = True,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Also 95 % bootstrap intervals of every metric over the test images.")
    ] = False,
    limit: Limit = None,
    device: DeviceOption = "auto",
    run: RunFolder = None,
    data: MovedData = None,
    calibration: OwnCalibration = None,
    test: OwnTest = None,
    earlier: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Instead of bundles: an earlier evaluation.json, or its folder; several times."),
    ] = None,
) -> None:
    """Measure bundles on out-of-distribution sets, in the layout of the paper's tables.

    Example: `confgate-train evaluate models/mine/1 --baseline models/plain/1 --ood all_images --ood uniform`

    An imported classifier: `confgate-train evaluate models/mine/1 --test photos/test --ood night --ood uniform`

    Two trainings, with mean ± std: `confgate-train evaluate m/a/1 m/b/1 --baseline m/c/1 --baseline m/d/1 --ood isun`

    The same from two evaluations made before: `confgate-train evaluate --from first --from second.json --out both`
    """
    from training.evaluation.combine import combine, evaluation_file
    from training.evaluation.evaluate import Settings
    from training.evaluation.evaluate import evaluate as run_evaluation
    from training.evaluation.own_images import GivenFolders
    from training.evaluation.progress import progress_bar
    from training.evaluation.tables import notes_of, tables_of
    from training.evaluation.write import write_evaluation

    if earlier:
        _refuse_beside_from(context)
        files = [evaluation_file(path) for path in earlier]
        if len(files) > 1 and (out / "evaluation.json").resolve() in [file.resolve() for file in files]:
            raise DataError(f"--out {out} would replace one of the evaluations it is made from. Name another folder.")
        evaluation = combine(files)
    elif bundles and ood:
        measured, partners = (
            [measured_bundle(one, out, data_root, data, console) for one in given]
            for given in (bundles, baseline or [])
        )
        runs = {one.bundle: of_run for one in (*measured, *partners) if (of_run := run or one.run) is not None}
        settings = Settings(
            *(tuple(ood), data_root, out, epsilon, limit, device, runs, preprocessed, intervals, data),
            given=GivenFolders(calibration, test),
        )
        with progress_bar(console) as show:
            evaluation = run_evaluation(
                [one.bundle for one in measured], [one.bundle for one in partners], settings, show
            )
    else:
        raise DataError(
            f"{'--ood' if bundles else 'BUNDLE'} is missing. Give bundles and at least one --ood NAME, or --from with "
            f"evaluations made before."
        )
    for table in tables_of(evaluation):
        console.print(table.rich())
    for note in notes_of(evaluation):
        console.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)
    for path in write_evaluation(evaluation, out, typed(context)):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _refuse_beside_from(context: typer.Context) -> None:
    """Options of a measurement have no effect on earlier evaluations, so they are an error."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name not in ("earlier", "out") and source is not None and source.name == "COMMANDLINE":
            name = parameter.opts[0] if parameter.param_type_name == "option" else "BUNDLE"
            raise DataError(
                f"--from puts together what was measured before, so {name} cannot be given beside it. Evaluate new "
                f"bundles by themselves, and give that evaluation as one more --from."
            )
