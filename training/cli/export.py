"""`confgate-train export` and `import-onnx`: the two ways to a bundle."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from service.model.bundle import Bundle
from training.cli.calibrate import Alpha, EpsilonChoice, OutsideSets, Risk, Tprs
from training.cli.options import DataRoot
from training.errors import DataError
from training.graphs.progress import counting_images

console = Console()

Channels = tuple[float, float, float]
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)

Out = Annotated[Path, typer.Option(help="The bundle to write: models/NAME/VERSION.")]


def export(
    run: Annotated[Path, typer.Argument(help="A finished run: the --out of `fit`.")],
    out: Out,
    ood: OutsideSets = None,
    tpr: Tprs = None,
    risk: Risk = None,
    alpha: Alpha = 0.05,
    epsilon_by: EpsilonChoice = "auto",
    without_branch: Annotated[
        bool, typer.Option("--without-branch", help="The classifier alone: the baseline of a run it was trained in.")
    ] = False,
    data_root: DataRoot = Path("data"),
) -> None:
    """Calibrate thresholds, export to ONNX, evaluate what was exported, write the bundle.

    Example: `confgate-train export runs/cifar10 --out models/mine/1 --ood fashion_mnist`
    """
    from training.bundles.from_run import make_bundle
    from training.calibration.policies import Wanted

    with counting_images(console, "exporting, calibrating and measuring"):
        bundle, calibrated = make_bundle(
            run, out, data_root, ood or [], Wanted(tuple(tpr or (95,)), risk, alpha), epsilon_by, without_branch
        )
    for note in calibrated.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    _show(bundle)


def import_onnx(
    model: Annotated[Path, typer.Argument(help="An ONNX image classifier that ends in logits or a softmax.")],
    labels: Annotated[str, typer.Option(help="Class names in order: a text file, one a line, or a,b,c.")],
    calibration: Annotated[Path, typer.Option(help="Labelled images it was not trained on: FOLDER/LABEL/*.png.")],
    out: Out,
    mean: Annotated[Channels, typer.Option(help="Of red, green, blue, on the scale 0 to 1.")] = IMAGENET_MEAN,
    std: Annotated[Channels, typer.Option(help="Likewise; the defaults are ImageNet's.")] = IMAGENET_STD,
    layout: Annotated[Literal["nchw", "nhwc"], typer.Option(help="Order of the graph's own input.")] = "nchw",
    test: Annotated[Path | None, typer.Option(help="Labelled images to report figures on: FOLDER/LABEL/*.png.")] = None,
    resize: Annotated[
        Literal["stretch", "fit_crop"], typer.Option(help="How other sizes become the graph's size.")
    ] = "stretch",
    crop_fraction: Annotated[
        float, typer.Option(help="With fit_crop: what part of the scaled image is kept (224/256 = 0.875).")
    ] = 1.0,
    interpolation: Annotated[Literal["nearest", "bilinear", "bicubic"], typer.Option()] = "bilinear",
) -> None:
    """Turn any ONNX image classifier into a bundle, gated on its largest softmax and, where possible, on ODIN.

    Example: `confgate-train import-onnx resnet18.onnx --labels labels.txt --calibration photos --out models/resnet/1`
    """
    from service.model.bundle import Input
    from training.bundles.from_onnx import import_onnx as run_import

    rule = Input(width=1, height=1, resize=resize, crop_fraction=crop_fraction, interpolation=interpolation)
    names = read_labels(labels)
    with counting_images(console, "importing, calibrating and measuring"):
        imported = run_import(model, out, names, calibration, test, mean, std, layout, rule)
    for note in imported.notes:
        console.print(f"note: {note}", highlight=False)
    _show(imported.bundle)


def read_labels(text: str) -> tuple[str, ...]:
    """Class names from a file, one a line, or from the text itself, separated by commas."""
    path = Path(text)
    lines = path.read_text().splitlines() if path.is_file() else text.split(",")
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) < 2:
        raise DataError(f"--labels {text} gives {len(names)} names, expected a text file or a,b,c with at least two.")
    return names


def _show(bundle: Bundle) -> None:
    console.print((bundle.folder / "CARD.md").read_text(), markup=False, highlight=False, soft_wrap=True)
    console.print(f"wrote {bundle.folder}", highlight=False, soft_wrap=True)
