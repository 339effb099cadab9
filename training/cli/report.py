"""`confgate-train report`: a bundle in pictures and plain words."""

import io
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from training.cli.options import DataRoot, DeviceOption, Limit, MovedData, Ood, OwnCalibration, OwnTest, RunFolder
from training.cli.run_or_bundle import measured_bundle
from training.cli.typed import typed
from training.evaluation.progress import progress_bar

console = Console()


def report(
    context: typer.Context,
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE_OR_RUN", help="models/NAME/VERSION; a finished run is exported first.")
    ],
    ood: Ood,
    out: Annotated[Path, typer.Option(help="Folder for index.html, the pictures and kept scores.")],
    data_root: DataRoot = Path("data"),
    preprocessed: Annotated[
        bool, typer.Option(help="Also the score of the perturbed graph, which takes most of the time.")
    ] = True,
    limit: Limit = None,
    device: DeviceOption = "auto",
    run: RunFolder = None,
    data: MovedData = None,
    calibration: OwnCalibration = None,
    test: OwnTest = None,
) -> None:
    """Draw what a bundle does: its gate as a map, thresholds, ROC, risk and coverage, samples, on one HTML page.

    Example: `confgate-train report models/mine/1 --ood all_images --ood uniform --out report`

    An imported classifier: `confgate-train report models/mine/1 --test photos/test --ood night --out report`
    """
    from training.evaluation.own_images import GivenFolders
    from training.evaluation.write import write_text
    from training.report.gather import gather
    from training.report.page import page
    from training.report.pictures import pictures_of
    from training.report.style import DPI

    measured = measured_bundle(bundle, out, data_root, data, console)
    with progress_bar(console) as show:
        gathered = gather(
            measured.bundle,
            list(ood),
            data_root,
            out,
            limit=limit,
            device=device,
            run=run or measured.run,
            data=data,
            given=GivenFolders(calibration, test),
            preprocessed=preprocessed,
            progress=show,
        )
    for note in gathered.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    out.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, bytes] = {}
    for name, draw in pictures_of(gathered).items():
        file = io.BytesIO()
        draw(gathered).savefig(file, format="png", dpi=DPI)
        pictures[name] = file.getvalue()
        (out / f"{name}.png").write_bytes(pictures[name])
    write_text(out / "index.html", page(gathered, pictures, typed(context)))
    console.print(f"wrote {out / 'index.html'} and {len(pictures)} pictures", highlight=False, soft_wrap=True)
