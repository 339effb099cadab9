"""Damaged input by the hundred: whatever the bytes, a decoder answers with pixels or says what is wrong with them.

Hypothesis damages real files of every format that is served, in ways that files really break and attackers break them.
"""

import asyncio
import base64
import contextlib
import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from service.errors import InvalidImage, MalformedRequest, RequestError, TooLarge, Unauthorised, UnsupportedType
from service.model.images import decode, shrink
from service.model.manifest import Input
from service.serving.gate_changes import GateChange
from service.settings import Settings
from service.web.auth import Gatekeeper
from service.web.bodies import BodyLimits, read_images
from tests.properties import examples

# Warnings about damage are no news here, and `service.logs` keeps them out of the log.
pytestmark = pytest.mark.filterwarnings(r"ignore::UserWarning:PIL\.")
bounded = settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
TARGET = Input(width=8, height=6, resize="fit_crop", interpolation="bilinear", crop_fraction=0.9)
MAX_PIXELS = 100_000


def encoded(kind: str, mode: str, **options: Any) -> bytes:
    pixels = np.random.default_rng(7).integers(0, 256, (24, 30, 4), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels, "RGBA").convert(mode).save(file, kind, **options)
    return file.getvalue()


EXIF = Image.Exif()
EXIF[0x0112] = 6
STARTS = (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\xff\xff\xff\xffWEBPVP8X", b"BM", b"GIF89a", b"II*\0")
CORPUS = {
    "PNG": encoded("PNG", "RGBA"),
    "PNG palette": encoded("PNG", "P", transparency=3),
    "PNG 16 bit": encoded("PNG", "I;16") if "I;16" in Image.MODES else encoded("PNG", "L"),
    "JPEG": encoded("JPEG", "RGB", exif=EXIF),
    "JPEG progressive": encoded("JPEG", "CMYK", progressive=True),
    "WebP": encoded("WEBP", "RGBA"),
    "WebP lossless": encoded("WEBP", "RGBA", lossless=True, exif=EXIF.tobytes()),
    "BMP": encoded("BMP", "RGB"),
    "GIF": encoded("GIF", "P"),
    "TIFF": encoded("TIFF", "RGB", compression="tiff_lzw"),
    "TIFF deflate": encoded("TIFF", "RGBA", compression="tiff_adobe_deflate"),
}


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """A file that is cut, or has bytes changed, removed, repeated, or set to what lengths and offsets fear most."""
    content = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        # Headers are where sizes and offsets are: half of the damage goes there.
        place = draw(st.integers(0, min(64, len(content) - 1)) | st.integers(0, len(content) - 1))
        how = draw(st.sampled_from(("flip", "extreme", "cut", "remove", "repeat", "junk")))
        if how == "flip":
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "extreme":
            content[place : place + 4] = draw(st.sampled_from((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff")))
        elif how == "cut":
            del content[max(1, place) :]
        elif how == "remove":
            del content[place : place + draw(st.integers(1, 40))]
        elif how == "repeat":
            content[place:place] = content[place : place + draw(st.integers(1, 200))]
        else:
            content[place:place] = draw(st.binary(max_size=20))
        if not content:
            return b"\0"
    return bytes(content)


@pytest.mark.hypothesis  # the property is inside, where Hypothesis does not see it when tests are collected
@pytest.mark.parametrize("name", CORPUS)
def test_a_damaged_file_is_pixels_or_a_sentence(name: str) -> None:
    """Every damaged file gives pixels of the right shape, or InvalidImage or TooLarge; never anything else."""
    whole = decode(CORPUS[name], TARGET, MAX_PIXELS)
    assert (whole.shape, whole.dtype) == ((6, 8, 3), np.uint8)

    @bounded
    @given(damaged(CORPUS[name]))
    def survives(content: bytes) -> None:
        with contextlib.suppress(InvalidImage, TooLarge):
            pixels = decode(content, TARGET, MAX_PIXELS)
            assert (pixels.shape, pixels.dtype) == ((6, 8, 3), np.uint8)
            kept = shrink(content, 16, MAX_PIXELS)
            assert max(kept.shape[:2]) <= 16

    survives()


@bounded
@given(st.binary(max_size=300))
def test_any_bytes_are_pixels_or_a_sentence(content: bytes) -> None:
    """Bytes that were never an image are refused, whatever they begin with."""
    for start in STARTS:
        with contextlib.suppress(InvalidImage, TooLarge):
            assert decode(start + content, TARGET, MAX_PIXELS).shape == (6, 8, 3)


def read(content_type: str, chunks: list[bytes], length: int | None = None) -> list[bytes | RequestError]:
    """A body as the server hands it over, chunk by chunk."""
    waiting = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    images, _ = asyncio.run(read_images({"headers": []}, receive, content_type, length, BodyLimits(2000, 4)))
    return images


IMAGE = CORPUS["PNG palette"][:200]
FORM = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x"\r\n\r\n' + IMAGE + b"\r\n--b--\r\n"
JSON = json.dumps({"images": [base64.b64encode(IMAGE).decode()] * 2}).encode()
BODIES = {"multipart/form-data; boundary=b": FORM, "application/json": JSON, "image/png": IMAGE}


@pytest.mark.hypothesis
@pytest.mark.parametrize("content_type", BODIES)
def test_a_damaged_body_is_images_or_a_sentence(content_type: str) -> None:
    """However a body is damaged and cut into chunks, it is a few images, or an error that says what is wrong."""
    body = BODIES[content_type]
    assert all(item == IMAGE for item in read(content_type, [body]))

    @bounded
    @given(damaged(body), st.integers(1, 400), st.none() | st.integers(0, 5000))
    def survives(content: bytes, chunk: int, length: int | None) -> None:
        chunks = [content[i : i + chunk] for i in range(0, len(content), chunk)]
        with contextlib.suppress(MalformedRequest, TooLarge):
            images = read(content_type, chunks, length)
            assert 1 <= len(images) <= 4
            assert all(isinstance(item, bytes | InvalidImage) for item in images)

    survives()


@bounded
@given(st.text(st.characters(max_codepoint=255), max_size=60))  # what a header can hold
def test_any_content_type_is_served_or_refused(content_type: str) -> None:
    """No Content-Type, however odd, is more than an error."""
    for kind in (content_type, f"multipart/form-data; {content_type}", f"multipart/form-data; boundary={content_type}"):
        with contextlib.suppress(MalformedRequest, UnsupportedType, TooLarge):
            assert all(isinstance(item, bytes) for item in read(kind, [FORM]))


@bounded
@given(st.lists(st.tuples(st.sampled_from([b"authorization", b"x-api-key", b"forwarded"]), st.binary(max_size=300))))
def test_any_header_is_no_key(headers: list[tuple[bytes, bytes]]) -> None:
    """Whatever headers say, nobody becomes somebody without a key."""
    line = f"ops:admin:{'0' * 64}"
    gatekeeper = Gatekeeper(Settings(api_keys=line, allow_anonymous="false"))
    with pytest.raises(Unauthorised):
        gatekeeper.identify({"headers": headers, "client": ("127.0.0.1", 1)})


values = st.none() | st.floats() | st.text(max_size=5) | st.integers() | st.booleans()
names = st.sampled_from(["score", "policy", "threshold", "threshold_raw", "note", "x"])


@bounded
@given(st.dictionaries(names, values))
def test_any_change_is_finite_or_refused(change: dict[str, Any]) -> None:
    """What is taken as a change of the gate has exactly one, finite, threshold or policy."""
    try:
        taken = GateChange.model_validate_json(json.dumps(change), strict=True)
    except ValueError:
        return
    given_here = [taken.policy, taken.threshold, taken.threshold_raw]
    assert sum(item is not None for item in given_here) == 1
    assert all(np.isfinite(item) for item in given_here[1:] if item is not None)
