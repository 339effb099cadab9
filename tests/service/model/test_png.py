"""The short way for plain PNG files leads where Pillow leads, for files that are right and for those that are not."""

import io
import struct
import zlib
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from service.errors import RequestError
from service.model.bundle import Input
from service.model.images import Pixels, decode
from service.model.png import open_plain
from tests.properties import examples

TARGET = Input(width=6, height=4, resize="stretch", interpolation="bilinear")
LIMIT = 2_000


def saved(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Half slopes, half noise, so that the encoder has reason to use every filter."""
    slopes = np.add.outer(np.arange(height) * 5, np.arange(width) * 3)[..., None] + np.array([0, 40, 90])
    noise = np.random.default_rng(seed).integers(0, 60, (height, width, 3))
    noise[: height // 2] = 0
    return Image.fromarray(((slopes + noise) % 256).astype(np.uint8))


def in_pieces(file: bytes, size: int) -> bytes:
    """The same file with its pixels in many IDAT chunks."""
    (length,) = struct.unpack_from(">I", file, 33)
    packed, parts = file[41 : 41 + length], [file[:33]]
    for start in range(0, length, size):
        chunk = b"IDAT" + packed[start : start + size]
        parts += [struct.pack(">I", len(chunk) - 4), chunk, struct.pack(">I", zlib.crc32(chunk))]
    return b"".join([*parts, file[-12:]])


@settings(max_examples=examples(50))
@given(
    width=st.integers(1, 40),
    height=st.integers(1, 40),
    level=st.integers(0, 9),
    piece=st.integers(1, 500),
    seed=st.integers(0, 99),
)
def test_pixels_are_those_that_pillow_reads(width: int, height: int, level: int, piece: int, seed: int) -> None:
    """Of any size, packed in any way and in any number of pieces."""
    image = photo(width, height, seed)
    for file in (whole := saved(image, compress_level=level), in_pieces(whole, piece)):
        found = open_plain(file, LIMIT)
        assert found is not None
        assert np.array_equal(np.asarray(found), np.asarray(image))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_other_modes_are_left_to_pillow(mode: str) -> None:
    """Grey, palettes, alpha and 16 bits need what only Pillow knows."""
    image = Image.new("I;16", (5, 5)) if mode == "I;16" else photo(5, 5).convert(mode)
    assert open_plain(saved(image), LIMIT) is None


def test_files_that_tell_more_are_left_to_pillow() -> None:
    """A text, an orientation or a transparent colour may change what is shown."""
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "x")
    turned = Image.Exif()
    turned[0x0112] = 6
    for options in ({"pnginfo": text}, {"exif": turned}, {"transparency": (0, 40, 90)}, {"dpi": (72, 72)}):
        assert open_plain(saved(photo(5, 5), **options), LIMIT) is None


def test_too_many_pixels_are_not_decoded() -> None:
    """The limit holds here as it does for every other file."""
    file = saved(photo(20, 20))
    assert open_plain(file, 400) is not None
    assert open_plain(file, 399) is None


def outcome(file: bytes) -> Pixels | tuple[type, str]:
    try:
        return decode(file, TARGET, LIMIT)
    except RequestError as error:
        return type(error), error.detail


@settings(max_examples=examples(300))
@given(data=st.data(), pieces=st.booleans())
def test_damage_is_told_as_without_the_short_way(data: st.DataObject, pieces: bool) -> None:
    """Changed, missing or added bytes give the very answer, or error, that Pillow alone gives."""
    file = bytearray(saved(photo(7, 5)))
    if pieces:
        file = bytearray(in_pieces(bytes(file), 20))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(file) - 1))
        kind = data.draw(st.sampled_from(["change", "cut", "insert", "truncate"]))
        if kind == "change":
            file[place] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del file[place : place + data.draw(st.integers(1, 9))]
        elif kind == "insert":
            file[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        else:
            del file[place:]
        if not file:
            break
    short = outcome(bytes(file))
    with patch("service.model.images.open_plain", lambda *_: None):
        long = outcome(bytes(file))
    assert type(short) is type(long)
    assert np.array_equal(short, long) if isinstance(short, np.ndarray) else short == long
