"""`confgate-train import-onnx`: an ONNX classifier becomes a bundle."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from training.cli.options import CalibrationOod, DataRoot, Out, show_bundle
from training.errors import DataError
from training.graphs.progress import counting_images

console = Console()

Channels = tuple[float, float, float]
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


def import_onnx(
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

    rule = Input(width=1, height=1, resize=resize, crop_fraction=crop_fraction, interpolation=interpolation)
    names = read_labels(labels)
    with counting_images(console, "importing, calibrating and measuring"):
        imported = run_import(model, out, names, calibration, test, mean, std, layout, rule, ood or [], data_root)
    for note in imported.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    show_bundle(imported.bundle, console, imported.warning)


def read_labels(text: str) -> tuple[str, ...]:
    """Class names from a file, one a line, or from the text itself, separated by commas."""
    path = Path(text)
    lines = path.read_text().splitlines() if path.is_file() else text.split(",")
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) < 2:
        raise DataError(f"--labels {text} gives {len(names)} names, expected a text file or a,b,c with at least two.")
    return names
