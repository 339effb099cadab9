"""Headers tell size and cost as Pillow finds them, and no bytes break the reader."""

import io

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from benchmarks.attacks.files import encoded
from service.errors import RequestError
from service.model.headers import FORMATS, INSTANT_PIXELS, Header, read_header, read_instant_header
from tests.costly_files import many_chunks, many_scans, many_segments, many_strips, png, wide_webp
from tests.properties import examples

OPTIONS: dict[str, list[dict[str, object]]] = {
    "PNG": [{}, {"icc_profile": bytes(500)}],
    "JPEG": [{}, {"progressive": True}, {"icc_profile": bytes(70_000)}, {"comment": b"hello"}],
    "WEBP": [{}, {"lossless": True}, {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"}],
    "GIF": [{}],
    "TIFF": [{}, {"compression": "tiff_deflate"}],
    "BMP": [{}],
}


@pytest.mark.parametrize("size", [(1, 1), (37, 5), (300, 200)])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_header_has_the_size_that_pillow_finds(kind: str, size: tuple[int, int]) -> None:
    """In every format, with and without profiles, comments and scans."""
    for options in OPTIONS[kind]:
        file = encoded(Image.effect_noise(size, 50).convert("RGB"), kind, **options)
        header = read_header(file)
        with Image.open(io.BytesIO(file)) as image:
            assert (header.format, header.width, header.height) == (image.format, *image.size)


def test_scans_frames_parts_and_metadata_are_counted() -> None:
    """A progressive file has several scans, an animation its frames, a profile its bytes."""
    noise = Image.effect_noise((64, 64), 50).convert("RGB")
    assert read_header(encoded(noise, "JPEG")).passes == 1
    assert read_header(encoded(noise, "JPEG", progressive=True)).passes == 10
    assert read_header(many_scans(100, 64)).passes > 100
    frames = {"save_all": True, "append_images": [Image.new("RGB", (64, 64), (n, 0, 0)) for n in range(50, 250, 50)]}
    for kind in ("GIF", "WEBP", "PNG"):
        assert read_header(encoded(noise, kind, **frames)).frames == 5
    assert read_header(many_strips(5000)).parts >= 5000
    assert read_header(encoded(noise, "JPEG", icc_profile=bytes(100_000))).metadata_bytes >= 100_000


def test_only_tiny_plain_files_are_instant() -> None:
    """An 8-bit PNG or a baseline JPEG of few pixels and few parts is; nothing that could cost more is."""
    rgb = Image.effect_noise((128, 128), 50).convert("RGB")
    assert rgb.width * rgb.height == INSTANT_PIXELS
    assert read_instant_header(encoded(rgb, "PNG"))
    assert read_instant_header(encoded(rgb, "JPEG"))
    for file in (
        encoded(Image.new("RGB", (129, 128)), "PNG"),
        encoded(rgb, "JPEG", progressive=True),
        encoded(rgb.convert("P"), "PNG"),
        encoded(rgb, "WEBP"),
        encoded(rgb, "GIF"),
        many_chunks(1000),
        many_segments(1000),
        many_scans(200, 64),
        png() + bytes(70_000),
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
    ):
        assert read_instant_header(file) is None


def test_cost_grows_with_pixels_and_scans() -> None:
    """The estimates keep their order: a scan, a pixel and a part more never cost less."""
    small, large = Header("JPEG", 100, 100), Header("JPEG", 4000, 3000)
    assert small.decode_seconds < large.decode_seconds < Header("JPEG", 4000, 3000, passes=10).decode_seconds
    assert read_header(wide_webp()).decode_bytes(None) > 40_000_000 * 12
    assert Header("JPEG", 4000, 3000).decode_bytes(512) < Header("JPEG", 4000, 3000, passes=10).decode_bytes(512)


def test_a_jpeg_costs_the_memory_of_the_size_it_is_decoded_at() -> None:
    """Both sides must keep what is needed; the coefficients of all components of a progressive file are always kept."""
    photo = Header("JPEG", 4000, 3000)
    reductions = {None: 1, 3000: 1, 1501: 1, 1500: 2, 751: 2, 750: 4, 376: 4, 375: 8, 100: 8}
    assert {side: photo.reduction(side) for side in reductions} == reductions
    assert [photo.decode_bytes(side) for side in (None, 1500, 750)] == [96_000_000, 24_000_000, 6_000_000]
    assert Header("JPEG", 60_000, 600).reduction(512) == 1
    assert Header("PNG", 4000, 3000).reduction(100) == 1
    cmyk = read_header(encoded(Image.new("CMYK", (640, 480)), "JPEG", progressive=True))
    assert cmyk.decode_bytes(60) - 2 * cmyk.metadata_bytes == 640 * 480 * 8 + 640 * 480 // 64 * 8


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_bytes_break_the_reader(data: st.DataObject) -> None:
    """Cut, changed and random files give a header or one of our errors, and never anything else."""
    kind = data.draw(st.sampled_from(FORMATS))
    file = bytearray(encoded(Image.fromarray(np.zeros((9, 7, 3), np.uint8)), kind))
    for _ in range(data.draw(st.integers(0, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(file[: data.draw(st.integers(0, len(file)))]) + data.draw(st.binary(max_size=30))
    read_instant_header(cut)
    try:
        header = read_header(cut)
    except RequestError:
        return
    assert header.decode_seconds >= 0
    assert header.decode_bytes(data.draw(st.sampled_from((None, 2, 100)))) >= 0
