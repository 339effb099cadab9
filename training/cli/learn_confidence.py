"""`confgate-train learn-confidence`: a finished classifier gets a learned confidence."""

import tempfile
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


def learn_confidence(
    context: typer.Context,
    model: Annotated[
        Path, typer.Argument(help="A bundle (models/NAME/VERSION), a run (the --out of `fit`), or an ONNX file.")
    ],
    out: Out,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Labelled images to learn doubt from, in FOLDER/LABEL/: best those that the classifier was not "
            "trained on. Of a model that was trained here, its training images are the default."
        ),
    ] = None,
    trained_on: Annotated[
        bool | None,
        typer.Option(
            "--trained-on/--not-trained-on",
            help="Whether the classifier was trained on --data. [default: found out by hash where the bundle knows its "
            "training images; else perhaps]",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Of a model from elsewhere: at least 50 images to set thresholds on, in FOLDER/LABEL/. [default: "
            "those on record, if none of them is in --data; else a fifth of --data]"
        ),
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="Of a model from elsewhere: other labelled images, to report figures on.")
    ] = None,
    ood: CalibrationOod = None,
    labels: Annotated[
        str | None, typer.Option(help="Of an ONNX file: class names in order, a text file or a,b,c.")
    ] = None,
    mean: Mean = None,
    std: Std = None,
    pixel_range: PixelRange = 1.0,
    channels: Channels = "rgb",
    layout: LayoutOption = None,
    size: SizeOption = None,
    output: OutputName = None,
    resize: Resize = "stretch",
    crop_fraction: CropFraction = 1.0,
    interpolation: Interpolation = "bilinear",
    decode_margin: DecodeMarginOption = "2",
    hidden: Annotated[str, typer.Option(help="Widths of the branch's hidden layers.")] = "512,256,128",
    budget: Annotated[
        float, typer.Option(min=0.001, help="β: the mean of -log c on ordinary images that the fit aims at.")
    ] = 0.1,
    views: Annotated[
        int | None,
        typer.Option(min=1, help="Ordinary views of each image, and as many hard ones. [default: 2 to 8, by number]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn at random.")] = 0,
    tpr: Tprs = None,
    risk: Risk = None,
    alpha: Alpha = 0.05,
    data_root: DataRoot = Path("data"),
) -> None:
    """Give a finished classifier a learned confidence: a branch on the layers of its graph; its answers stay.

    Examples: `confgate-train learn-confidence models/photos/1 --data photos/train --out models/photos/2`

    `confgate-train learn-confidence resnet18.onnx --labels labels.txt --data photos --out models/resnet18/1`
    """
    from training.bundles.finished_classifier import Given
    from training.bundles.learn_confidence import learn_confidence as run
    from training.calibration.policies import Wanted
    from training.graphs.foreign.classifier import Reading
    from training.learning.branch_fit import BranchSettings

    given = Given(
        model=model,
        command=typed(context),
        data=data,
        calibration=calibration,
        test=test,
        ood=ood or [],
        data_root=data_root,
        trained_on=trained_on,
        labels=None if labels is None else read_labels(labels),
        reading=Reading(preprocessing_of(mean, std, pixel_range, channels), layout, size_of(size), output),
        resize=resize_rule(resize, crop_fraction, interpolation, decode_margin),
    )
    settings = BranchSettings(hidden=_widths(hidden), budget=budget, seed=seed)
    with counting_images(console, "learning confidence"), tempfile.TemporaryDirectory() as weights:
        done = run(given, out, Path(weights), settings, views, Wanted(tuple(tpr or (95,)), risk, alpha))
    for note in done.notes:
        _print(f"note: {note}")
    for line in ("", *done.worth, ""):
        _print(line)
    show_bundle(done.bundle, console, done.calibrated.warning)


def _widths(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"--hidden is {text!r}, expected widths such as 512,256,128, or '' for none.")
    return tuple(int(part) for part in parts)


def _print(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
