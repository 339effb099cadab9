"""`confgate-train import-onnx`: an ONNX classifier becomes a bundle."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from training.cli.options import Alpha, CalibrationOod, DataRoot, Out, Risk, Tprs, show_bundle
from training.cli.reading import (
    Channels,
    CropFraction,
    DecodeMarginOption,
    Interpolation,
    LayoutOption,
    Mean,
    OutputName,
    PixelRange,
    Resize,
    SizeOption,
    Std,
    preprocessing_of,
    read_labels,
    resize_rule,
    size_of,
)
from training.cli.typed import typed
from training.graphs.progress import counting_images

console = Console()


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
    mean: Mean = None,
    std: Std = None,
    pixel_range: PixelRange = 1.0,
    channels: Channels = "rgb",
    layout: LayoutOption = None,
    size: SizeOption = None,
    output: OutputName = None,
    test: Annotated[Path | None, typer.Option(help="Other labelled images, to report figures on.")] = None,
    ood: CalibrationOod = None,
    tpr: Tprs = None,
    risk: Risk = None,
    alpha: Alpha = 0.05,
    data_root: DataRoot = Path("data"),
    resize: Resize = "stretch",
    crop_fraction: CropFraction = 1.0,
    interpolation: Interpolation = "bilinear",
    decode_margin: DecodeMarginOption = "2",
) -> None:
    """Turn any ONNX image classifier into a bundle with a gate that says why it refuses: unfamiliar, or unsure.

    Example: `confgate-train import-onnx resnet18.onnx --labels labels.txt --calibration photos --out models/resnet/1`
    """
    from training.bundles.from_onnx import import_onnx as run_import
    from training.calibration.policies import Wanted
    from training.graphs.foreign.classifier import Reading

    rule = resize_rule(resize, crop_fraction, interpolation, decode_margin)
    names = read_labels(labels)
    wanted = Wanted(tuple(tpr or (95,)), risk, alpha)
    reading = Reading(preprocessing_of(mean, std, pixel_range, channels), layout, size_of(size), output)
    with counting_images(console, "importing, calibrating and measuring"):
        imported = run_import(
            *(model, out, names, calibration, test, reading, typed(context), rule, ood or [], data_root),
            wanted,
        )
    for note in imported.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    show_bundle(imported.bundle, console, imported.warning)
