"""`confgate-train import-onnx`: an ONNX classifier becomes a bundle."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from training.cli.options import CalibrationOod, DataRoot, Out, show_bundle
from training.cli.typed import typed
from training.errors import DataError
from training.graphs.progress import counting_images

console = Console()

Channels = tuple[float, float, float]
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


def import_onnx(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="An ONNX image classifier that ends in logits or a softmax.")],
    labels: Annotated[str, typer.Option(help="Class names in order: a text file, one a line, or a,b,c.")],
    calibration: Annotated[
        Path,
        typer.Option(
            help="At least 50 images it was not trained on, in FOLDER/LABEL/. Some labels may have none; images "
            "without labels give refusal rates only."
        ),
    ],
    out: Out,
    mean: Annotated[Channels, typer.Option(help="Of red, green, blue, on the scale 0 to 1.")] = IMAGENET_MEAN,
    std: Annotated[Channels, typer.Option(help="Likewise; the defaults are ImageNet's.")] = IMAGENET_STD,
    layout: Annotated[Literal["nchw", "nhwc"], typer.Option(help="Order of the graph's own input.")] = "nchw",
    test: Annotated[Path | None, typer.Option(help="Other labelled images, to report figures on.")] = None,
    ood: CalibrationOod = None,
    data_root: DataRoot = Path("data"),
    resize: Annotated[
        Literal["stretch", "fit_crop"], typer.Option(help="How other sizes become the graph's size.")
    ] = "stretch",
    crop_fraction: Annotated[
        float, typer.Option(help="With fit_crop: what part of the scaled image is kept (224/256 = 0.875).")
    ] = 1.0,
    interpolation: Annotated[Literal["nearest", "bilinear", "bicubic"], typer.Option()] = "bilinear",
) -> None:
    """Turn any ONNX image classifier into a bundle with a gate that says why it refuses: unfamiliar, or unsure.

    Example: `confgate-train import-onnx resnet18.onnx --labels labels.txt --calibration photos --out models/resnet/1`
    """
    from service.model.bundle import Input
    from training.bundles.from_onnx import import_onnx as run_import

    check_resize(resize, crop_fraction)
    check_std(std)
    rule = Input(width=1, height=1, resize=resize, crop_fraction=crop_fraction, interpolation=interpolation)
    names = read_labels(labels)
    with counting_images(console, "importing, calibrating and measuring"):
        imported = run_import(
            *(model, out, names, calibration, test, mean, std, layout, typed(context), rule, ood or [], data_root)
        )
    for note in imported.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    show_bundle(imported.bundle, console, imported.warning)


def read_labels(text: str) -> tuple[str, ...]:
    """Class names from a file, one a line, or from the text itself, separated by commas."""
    path = Path(text)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines() if path.is_file() else text.split(",")
    except UnicodeDecodeError as problem:
        raise DataError(
            f"--labels {text} is not a text file in UTF-8 ({problem.reason}). Expected a name a line."
        ) from problem
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) < 2:
        found = "is a folder" if path.is_dir() else "is no file" if not path.is_file() else "has fewer than two names"
        raise DataError(f"--labels {text} {found}. Expected a text file with a name a line, or a,b,c.")
    repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise DataError(
            f"--labels {text} has {', '.join(repeated[:5])} more than once. Expected a different name for each class."
        )
    return names


def check_resize(resize: str, crop_fraction: float) -> None:
    """What the bundle's own contract would refuse, before anything is computed."""
    if not 0 < crop_fraction <= 1:
        raise DataError(f"--crop-fraction is {crop_fraction:g}, expected a share up to 1, such as 0.875.")
    if resize == "stretch" and crop_fraction != 1:
        raise DataError("--crop-fraction is for --resize fit_crop: give both, or neither.")


def check_std(std: Channels) -> None:
    """The image is divided by it."""
    if min(std) <= 0:
        raise DataError(f"--std is {', '.join(f'{value:g}' for value in std)}, expected three numbers above 0.")
