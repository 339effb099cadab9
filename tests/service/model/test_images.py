"""Any image becomes RGB uint8 at the bundle's size, whatever its format, mode, depth and orientation."""

import contextlib
import io
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from service.errors import InvalidImage, RequestError, TooLarge
from service.model.bundle import Input
from service.model.headers import FORMATS, read_header
from service.model.images import decode, fit, fit_array, needed_side, upright
from tests.properties import examples

SAME = Input(width=6, height=4, resize="stretch", interpolation="bilinear")
LIMIT = 10_000


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def picture(mode: str = "RGB") -> Image.Image:
    """6 × 4 pixels, no two alike."""
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3
    return Image.fromarray(pixels).convert(mode)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_come_through_unchanged(kind: str) -> None:
    """An image of the bundle's own size is handed to the graph pixel by pixel as it was."""
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    assert np.array_equal(decode(encoded(picture(), kind, **options), SAME, LIMIT), np.asarray(picture()))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_decoded(kind: str) -> None:
    """All formats that are promised give the colour that was drawn."""
    pixels = decode(encoded(Image.new("RGB", (6, 4), (200, 40, 40)), kind), SAME, LIMIT)
    assert pixels.shape == (4, 6, 3)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - (200, 40, 40)).max() <= 3


def test_what_follows_an_image_is_left_alone() -> None:
    """A file that is an image and then something else is that image."""
    assert np.array_equal(decode(encoded(picture()) + b"PK\x03\x04<script>", SAME, LIMIT), np.asarray(picture()))


def test_other_formats_are_not_decoded() -> None:
    """A format that Pillow knows and the service does not promise is no image here."""
    with pytest.raises(InvalidImage, match="not a PNG"):
        decode(encoded(picture(), "PPM"), SAME, LIMIT)
    with pytest.raises(InvalidImage, match="empty"):
        decode(b"", SAME, LIMIT)


def test_grey_becomes_three_equal_channels() -> None:
    """Grey and black-and-white images have the same value in each channel."""
    pixels = decode(encoded(picture("L")), SAME, LIMIT)
    assert np.array_equal(pixels, np.repeat(np.asarray(picture("L"))[..., None], 3, axis=2))
    assert set(decode(encoded(picture("1")), SAME, LIMIT).ravel().tolist()) <= {0, 255}


def test_a_palette_is_looked_up() -> None:
    """A palette image shows its palette's colours."""
    image = Image.new("P", (6, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert decode(encoded(image), SAME, LIMIT)[0, 0].tolist() == [10, 200, 30]


def test_transparency_shows_white() -> None:
    """What is transparent is white, what is half transparent is half white, in RGBA, LA, palette and RGB keys."""
    half = encoded(Image.new("RGBA", (6, 4), (0, 0, 0, 51)))
    assert decode(half, SAME, LIMIT)[0, 0].tolist() == [204, 204, 204]
    clear = encoded(Image.new("LA", (6, 4), (7, 0)))
    assert decode(clear, SAME, LIMIT)[0, 0].tolist() == [255, 255, 255]
    palette = Image.new("P", (6, 4), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    assert decode(encoded(palette, transparency=1), SAME, LIMIT)[0, 0].tolist() == [255, 255, 255]
    key = encoded(Image.new("RGB", (6, 4), (1, 2, 3)), transparency=(1, 2, 3))
    assert decode(key, SAME, LIMIT)[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_and_not_clipped(kind: str) -> None:
    """A 16-bit grey image keeps its whole range: 0, a half and full scale."""
    grey = np.full((4, 6), 0, np.uint16)
    grey[0, :3] = (0, 32768, 65535)
    assert decode(encoded(Image.fromarray(grey), kind), SAME, LIMIT)[0, :3, 0].tolist() == [0, 128, 255]


def test_thirty_two_bits_are_refused() -> None:
    """Samples whose range nobody knows are refused with a reason."""
    with pytest.raises(InvalidImage, match="32 bits"):
        decode(encoded(Image.new("F", (6, 4)), "TIFF"), SAME, LIMIT)


def test_cmyk_becomes_rgb() -> None:
    """A CMYK JPEG of pure cyan is cyan."""
    pixels = decode(encoded(Image.new("CMYK", (6, 4), (255, 0, 0, 0)), "JPEG"), SAME, LIMIT)
    assert np.abs(pixels.astype(int) - (0, 255, 255)).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_followed(orientation: int) -> None:
    """The eight EXIF orientations of one picture all show it upright."""
    turned = {
        1: lambda image: image,
        2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
        4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
        6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
        7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
        8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
    }[orientation](picture())
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(decode(encoded(turned, exif=exif), SAME, LIMIT), np.asarray(picture()))


def test_of_a_moving_picture_the_first_frame_counts() -> None:
    """An animated GIF is its first frame."""
    frames = [Image.new("RGB", (6, 4), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(moving, SAME, LIMIT)[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", FORMATS)
def test_pixels_are_counted_before_decoding(kind: str) -> None:
    """An image with one pixel too many is too large, in every format."""
    image = encoded(Image.new("RGB", (6, 4)), kind)
    decode(image, SAME, 24)
    with pytest.raises(TooLarge, match="6×4 pixels; at most 23"):
        decode(image, SAME, 23)


def test_fit_crop_takes_the_middle() -> None:
    """fit_crop keeps proportions and cuts the middle out; crop_fraction cuts closer."""
    wide = np.zeros((4, 12, 3), np.uint8)
    wide[:, 4:8] = 255
    rule = Input(width=4, height=4, resize="fit_crop", interpolation="nearest")
    assert (fit_array(wide, rule) == 255).all()
    frame = np.full((8, 8, 3), 255, np.uint8)
    frame[2:6, 2:6] = 7
    closer = Input(width=4, height=4, resize="fit_crop", interpolation="bilinear", crop_fraction=0.5)
    assert (fit_array(frame, closer) == 7).all()


@settings(max_examples=examples(300), deadline=None)
@given(
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    target=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    crop=st.sampled_from([1.0, 0.875]),
)
@example(size=(29, 34), target=(224, 224), crop=1.0)
@example(size=(34, 29), target=(224, 224), crop=1.0)
def test_fit_crop_takes_images_of_any_size(size: tuple[int, int], target: tuple[int, int], crop: float) -> None:
    """Whatever the proportions of image and target, one colour stays that colour in an image of the target's size."""
    rule = Input(width=target[0], height=target[1], resize="fit_crop", interpolation="bilinear", crop_fraction=crop)
    pixels = fit(Image.new("RGB", size, (10, 100, 200)), rule)
    assert np.array_equal(pixels, np.full((target[1], target[0], 3), (10, 100, 200)))


def test_stretch_uses_the_whole_image() -> None:
    """stretch maps the whole image onto the target, whatever its proportions."""
    halves = np.zeros((4, 12, 3), np.uint8)
    halves[:, 6:] = 200
    rule = Input(width=2, height=2, resize="stretch", interpolation="nearest")
    assert fit_array(halves, rule)[:, :, 0].tolist() == [[0, 200], [0, 200]]


def photo_of(width: int, height: int, mode: str, **options: object) -> bytes:
    """A JPEG with a gradient in each channel."""
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    smooth = (255 * np.stack([x, y, (x + y) / 2], axis=-1)).astype(np.uint8)
    return encoded(Image.fromarray(smooth).convert(mode), "JPEG", quality=95, **options)


SIDES = st.integers(1, 900)


@settings(max_examples=examples(200), deadline=None)
@given(
    size=st.tuples(SIDES, SIDES),
    mode=st.sampled_from(["RGB", "L", "CMYK"]),
    progressive=st.booleans(),
    subsampling=st.integers(0, 2),
    orientation=st.integers(1, 8),
    target=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    crop=st.sampled_from([None, 1.0, 0.875, 0.5]),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
    margin=st.one_of(st.sampled_from([1, 2]), st.floats(1, 6)),
)
def test_a_jpeg_decoded_at_a_reduced_scale_shows_the_same(
    size: tuple[int, int],
    mode: str,
    progressive: bool,
    subsampling: int,
    orientation: int,
    target: tuple[int, int],
    crop: float | None,
    interpolation: Literal["bilinear", "bicubic"],
    margin: float,
) -> None:
    """Photos of all sizes and kinds: the scale is the one that was foretold, leaves the margin, and changes little."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo = photo_of(*size, mode, progressive=progressive, subsampling=subsampling, exif=exif)
    resize: Literal["stretch", "fit_crop"] = "stretch" if crop is None else "fit_crop"
    rule = Input(
        width=target[0],
        height=target[1],
        resize=resize,
        interpolation=interpolation,
        crop_fraction=crop or 1.0,
        decode_margin=margin,
    )
    whole = rule.model_copy(update={"decode_margin": "full"})
    full, reduced = upright(photo, whole, 10**6), upright(photo, rule, 10**6)
    scale = read_header(photo).reduction(needed_side(rule))
    assert reduced.size == tuple(-(-side // scale) for side in full.size)
    assert scale == 1 or min(reduced.size) >= margin * round(max(target) / rule.crop_fraction)
    by_pillow = ImageOps.exif_transpose(Image.open(io.BytesIO(photo))).convert("RGB")
    assert np.array_equal(np.asarray(full), np.asarray(by_pillow))
    if scale == 1:
        assert np.array_equal(fit(reduced, rule), fit(full, whole))
    # The reduced image may show some pixels beyond the last, where the sides are no multiples of the scale.
    beyond = 255 * (scale - 1) / max(size)
    assert np.abs(fit(reduced, rule).astype(int) - fit(full, whole)).max() <= 8 + beyond


def test_a_bundle_without_a_decode_margin_has_that_of_all_before_it() -> None:
    """Twice what resizing needs, as it was before the field: other margins and full size give other pixels."""
    noise = np.random.default_rng(0).integers(0, 256, (96, 128, 3), np.uint8)
    photo = encoded(Image.fromarray(noise), "JPEG", quality=95)
    rule = Input(width=10, height=12, resize="stretch", interpolation="bicubic")
    with Image.open(io.BytesIO(photo)) as image:
        image.draft(None, (24, 24))
        assert image.size == (32, 24)
        assert np.array_equal(decode(photo, rule, 10**6), fit(image.convert("RGB"), rule))
    margins: tuple[float | Literal["full"], ...] = (1, 2, 4, "full")
    found = [decode(photo, rule.model_copy(update={"decode_margin": margin}), 10**6) for margin in margins]
    assert np.array_equal(found[1], decode(photo, rule, 10**6))
    assert len({pixels.tobytes() for pixels in found}) == len(margins)


@settings(max_examples=examples(150))
@given(data=st.data())
@pytest.mark.filterwarnings("ignore")  # Pillow comments on what it finds in broken files
def test_broken_files_only_ever_raise_our_errors(data: st.DataObject) -> None:
    """A file with bytes changed or cut off is decoded or refused, and never fails in another way."""
    kind = data.draw(st.sampled_from(FORMATS))
    good = bytearray(encoded(picture(), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(good[: data.draw(st.integers(1, len(good)))])
    with contextlib.suppress(RequestError):
        assert decode(broken, SAME, LIMIT).shape == (4, 6, 3)
