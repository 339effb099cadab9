"""Options that say how an ONNX file is read: shared by `import-onnx` and `learn-confidence`."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from training.cli.channel_values import channel_values
from training.errors import DataError

if TYPE_CHECKING:  # keeps --help fast
    from service.model.bundle import Input
    from training.graphs.foreign.preprocessing import Order, Preprocessing

Mean = Annotated[
    str | None,
    typer.Option(help="Subtracted from pixels: one value, or three such as 0.485,0.456,0.406. [default: ImageNet's]"),
]
Std = Annotated[
    str | None,
    typer.Option(help="Pixels are divided by it after that: likewise. [default: ImageNet's, 0.229,0.224,0.225]"),
]
PixelRange = Annotated[
    float,
    typer.Option(
        "--range",
        min=0.001,
        help="What a white pixel is before mean and std: 1, or 255 for models that take 0 to 255 (as Caffe's). "
        "With another range than 1, mean is 0 and std is 1 unless given.",
    ),
]
Channels = Annotated[
    Literal["rgb", "bgr"], typer.Option(help="Order of channels in the graph, and of the values of mean and std.")
]
LayoutOption = Annotated[
    Literal["nchw", "nhwc"] | None, typer.Option(help="Order of the graph's axes. [default: read from the graph]")
]
SizeOption = Annotated[str | None, typer.Option(help="Of a graph that takes any: 224, or WIDTHxHEIGHT. [default: 224]")]
OutputName = Annotated[
    str | None,
    typer.Option(help="The output with the logits or the softmax; also a tensor inside. [default: the one that fits]"),
]
Resize = Annotated[Literal["stretch", "fit_crop"], typer.Option(help="How other sizes become the graph's size.")]
CropFraction = Annotated[
    float, typer.Option(help="With fit_crop: what part of the scaled image is kept (224/256 = 0.875).")
]
Interpolation = Annotated[Literal["nearest", "bilinear", "bicubic"], typer.Option()]
DecodeMarginOption = Annotated[
    str,
    typer.Option(
        "--decode-margin",
        help="Large JPEGs are decoded at 1/2, 1/4 or 1/8 if their sides are then still so many times what resizing "
        "needs; full: always at full size.",
    ),
]


def preprocessing_of(mean: str | None, std: str | None, pixel_range: float, channels: "Order") -> "Preprocessing":
    from training.graphs.foreign.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

    usual = (IMAGENET_MEAN, IMAGENET_STD) if pixel_range == 1 else ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    if channels == "bgr":
        usual = (usual[0][::-1], usual[1][::-1])
    of_mean = usual[0] if mean is None else channel_values(mean, "--mean")
    of_std = usual[1] if std is None else channel_values(std, "--std")
    if min(of_std) <= 0:
        raise DataError(f"--std is {std!r}, expected values above 0.")
    return Preprocessing(of_mean, of_std, pixel_range, channels)


def size_of(text: str | None) -> tuple[int, int] | None:
    """Height and width."""
    if text is None:
        return None
    width, _, height = text.lower().replace("×", "x").partition("x")
    if not width.isdecimal() or not (height or width).isdecimal():
        raise typer.BadParameter(f"--size is {text!r}, expected 224, or WIDTHxHEIGHT such as 320x240.")
    return int(height or width), int(width)


def read_labels(text: str) -> tuple[str, ...]:
    """Class names from a file, one a line, or from the text itself, separated by commas."""
    path = Path(text)
    try:
        is_file = path.is_file()
    except OSError:  # a thousand names are too long for a path
        is_file = False
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines() if is_file else text.split(",")
    except UnicodeDecodeError as problem:
        raise DataError(
            f"--labels {text} is not a text file in UTF-8 ({problem.reason}). Expected a name a line."
        ) from problem
    names = tuple(line.strip() for line in lines if line.strip())
    if len(names) < 2:
        found = "is a folder" if path.is_dir() else "is no file" if not is_file else "has fewer than two names"
        raise DataError(f"--labels {text} {found}. Expected a text file with a name a line, or a,b,c.")
    repeated = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if repeated:
        raise DataError(
            f"--labels {text} has {', '.join(repeated[:5])} more than once. Expected a different name for each class."
        )
    return names


def resize_rule(
    resize: Literal["stretch", "fit_crop"],
    crop_fraction: float,
    interpolation: Literal["nearest", "bilinear", "bicubic"],
    decode_margin: str,
) -> "Input":
    """How images become the graph's input, whose size is not known yet.

    What the bundle's own contract would refuse is an error before anything is computed.
    """
    from service.model.bundle import Input

    if not 0 < crop_fraction <= 1:
        raise DataError(f"--crop-fraction is {crop_fraction:g}, expected a share up to 1, such as 0.875.")
    if resize == "stretch" and crop_fraction != 1:
        raise DataError("--crop-fraction is for --resize fit_crop: give both, or neither.")
    return Input(
        width=1,
        height=1,
        resize=resize,
        crop_fraction=crop_fraction,
        interpolation=interpolation,
        decode_margin=_margin_of(decode_margin),
    )


def _margin_of(text: str) -> "float | Literal['full']":
    if text == "full":
        return "full"
    try:
        margin = float(text)
    except ValueError:
        margin = 0.0
    if not 1 <= margin < math.inf:
        raise DataError(f"--decode-margin is {text!r}, expected a number from 1, such as 2, or full.")
    return margin
