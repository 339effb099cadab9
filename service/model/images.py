"""Image bytes → RGB uint8 [height, width, 3] at the bundle's size.

Limits on bytes, format and pixels are checked before decoding, which is where hostile files do their harm. The format
is read from the bytes, not from the Content-Type.
"""

import io
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from service.errors import InvalidImage, TooLarge
from service.model.headers import NOT_AN_IMAGE, Header, read_header
from service.model.manifest import Input
from service.model.png import open_plain

Pixels = npt.NDArray[np.uint8]

MEDIA_TYPES = frozenset(
    {"image/png", "image/jpeg", "image/jpg", "image/webp", "image/bmp", "image/x-ms-bmp", "image/gif", "image/tiff"}
)
# What Pillow raises on damaged and hostile files. Its parsers are Python code that follows untrusted offsets and
# tables, so besides its own OSError and SyntaxError they raise errors of the language.
DECODER_ERRORS = (
    *(OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, AttributeError, RuntimeError),
    *(ArithmeticError, MemoryError, struct.error, zlib.error),
)
INTERPOLATION = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}
WHITE = (255, 255, 255)


def decode(encoded: bytes, target: Input, max_pixels: int, header: Header | None = None) -> Pixels:
    """One encoded image of any size and mode, as the graph wants it; of an animation the first frame.

    `header` saves reading it again, where that was done.
    """
    return fit(upright(encoded, target, max_pixels, header), target)


def upright(encoded: bytes, target: Input, max_pixels: int, header: Header | None = None) -> Image.Image:
    """The whole of an encoded image as a person sees it, RGB, at least as large as `target` needs."""
    plain = open_plain(encoded, max_pixels)
    if plain is not None:
        return plain
    with _opened(encoded, max_pixels, header) as image:
        _reduce(image, needed_side(target))
        ImageOps.exif_transpose(image, in_place=True)  # not in place, it would copy every image that needs no rotation
        rgb = _to_rgb(image)
        rgb.load()  # here, where the decoder's errors are explained
        return rgb


def shrink(encoded: bytes, side: int, max_pixels: int, header: Header | None = None) -> Pixels:
    """The whole of an encoded image, upright and RGB, no side longer than `side`: its pixels and nothing else."""
    with _opened(encoded, max_pixels, header) as image:
        _reduce(image, needed_side(side))
        rgb = _to_rgb(ImageOps.exif_transpose(image))
        rgb.thumbnail((side, side), Image.Resampling.LANCZOS)
        return np.asarray(rgb, np.uint8)


def needed_side(target: Input | int) -> int | None:
    """What both sides of a JPEG must keep when it is decoded at a reduced scale; None: it is decoded at full size.

    An integer is the side to which `shrink` brings an image.
    """
    if isinstance(target, int):
        return 2 * target
    if target.decode_margin == "full":
        return None
    # The longer side counts for both, because EXIF may rotate the image.
    return math.ceil(target.decode_margin * round(max(target.width, target.height) / target.crop_fraction))


def _reduce(image: Image.Image, side: int | None) -> None:
    """Has a JPEG decoded at 1/2, 1/4 or 1/8, which leaves out most of the work after entropy decoding."""
    if side is not None:
        image.draft(None, (side, side))


@contextmanager
def _opened(encoded: bytes, max_pixels: int, header: Header | None = None) -> Iterator[Image.Image]:
    """An image whose header is within the limits; decoder errors inside the block become InvalidImage."""
    # Before Pillow opens the file, because that may allocate the whole image already.
    header = header or read_header(encoded)
    _refuse_huge(header.width, header.height, max_pixels)
    try:
        with Image.open(io.BytesIO(encoded), formats=(header.format,)) as image:
            _refuse_huge(image.width, image.height, max_pixels)
            yield image
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooLarge(f"the image has many more than the {max_pixels} pixels that are decoded") from error
    except UnidentifiedImageError as error:
        raise InvalidImage(NOT_AN_IMAGE) from error
    except DECODER_ERRORS as error:
        raise InvalidImage(f"the image is damaged or of an unknown kind: {error}") from error


def fit(image: Image.Image, target: Input) -> Pixels:
    """Resizes an RGB image to the bundle's size by the bundle's rule; an image of that size is returned unchanged."""
    size = (target.width, target.height)
    resample = INTERPOLATION[target.interpolation]
    if target.resize == "stretch":
        if image.size != size:
            image = image.resize(size, resample)
    else:
        # The largest middle part with the target's proportions, less what crop_fraction cuts off.
        scale = min(image.width / target.width, image.height / target.height) * target.crop_fraction
        width, height = target.width * scale, target.height * scale
        # Rounding may put an edge of the part outside the image, by so little that Pillow alone would notice.
        left, top = max(0.0, (image.width - width) / 2), max(0.0, (image.height - height) / 2)
        box = (left, top, min(image.width, left + width), min(image.height, top + height))
        if box != (0, 0, *size):
            image = image.resize(size, resample, box=box)
    # As np.asarray would do it, without asking the image for its mode and shape.
    return np.frombuffer(image.tobytes(), np.uint8).reshape(target.height, target.width, 3)


def fit_array(pixels: Pixels, target: Input) -> Pixels:
    """The same for an image that is already decoded: uint8 [H, W, 3], or grey [H, W]."""
    return fit(_to_rgb(Image.fromarray(pixels)), target)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I;16"):
        # Pillow would clip all above 255 to white.
        grey = np.asarray(image).astype(np.uint32)
        return Image.fromarray(((grey * 255 + 32767) // 65535).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        raise InvalidImage("images with 32 bits per sample are not served: their range is anybody's guess")
    if image.has_transparency_data:
        # As a person sees it on a white page; dropping the alpha channel would show colours that are hidden.
        opaque = Image.new("RGB", image.size, WHITE)
        rgba = image.convert("RGBA")
        opaque.paste(rgba, mask=rgba)
        return opaque
    return image.convert("RGB")


def _refuse_huge(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise TooLarge(f"the image has {width}×{height} pixels; at most {max_pixels} pixels are decoded")
