"""Files that cost a decoder far more than their size suggests, and legal ones just within the limits; all made here."""

import base64
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile

from service.model.headers import Header
from service.serving.decode_workers import THREAD_SECONDS

SIDE_40_MP = 6324  # its square is just below the setting max_pixels
BODY_BYTES = 19_900_000  # just below the setting max_body_bytes
JSON = "application/json"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
BOMB_BYTES = 200_000_000


class AttackFile(NamedTuple):
    """A file by name, and the statuses that may answer it besides 429 and 504; `make` is called where it is sent."""

    name: str
    make: Callable[[], bytes]
    allowed: frozenset[int]
    content_type: str = "application/octet-stream"


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(side: int, values: int = 256, samples: int = 3) -> Image.Image:
    """RGB or RGBA noise, the same each time. With fewer values it compresses a little, so decoding is slower."""
    return Image.fromarray(np.random.default_rng(0).integers(0, values, (side, side, samples), np.uint8))


def _in_one_block(image: Image.Image, **options: object) -> bytes:
    """A JPEG. Pillow's encoder needs room for the whole file where its scans are many, or large."""
    room, ImageFile.MAXBLOCK = ImageFile.MAXBLOCK, 40_000_000
    try:
        return encoded(image, "JPEG", **options)
    finally:
        ImageFile.MAXBLOCK = room


def with_scans(file: bytes, scans: int) -> bytes:
    """A progressive JPEG whose last refinement scan is repeated: each repetition is another pass over all pixels."""
    end = file.rindex(b"\xff\xd9")
    last = file[file.rindex(b"\xff\xda") : end]
    return file[:end] + last * (scans - file.count(b"\xff\xda")) + file[end:]


def many_scans(scans: int = 982, side: int = 3150) -> bytes:
    """Small enough for the event loop, which once took files of up to 64 KB for harmless."""
    return with_scans(encoded(Image.new("L", (side, side), 128), "JPEG", progressive=True), scans)


def most_scans(scans: int = 10, side: int = SIDE_40_MP) -> bytes:
    """As many scans and pixels as the limits allow, with noise in them."""
    grey = Image.fromarray(np.tile(np.asarray(noise(side // 6).convert("L")), (6, 6)))
    return with_scans(_in_one_block(grey, quality=10, progressive=True), scans)


def wide_webp(side: int = SIDE_40_MP) -> bytes:
    """40 megapixels of one colour in 34 bytes."""
    return encoded(Image.new("RGB", (side, side)), "WEBP", lossless=True, method=0)


def json_with(file: bytes, count: int = 64) -> bytes:
    return json.dumps({"images": [base64.b64encode(file).decode()] * count}).encode()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    before: Iterable[bytes] = (), width: int = 8, height: int = 8, bits: int = 8, colour: int = 2, interlaced: int = 0
) -> bytes:
    """A black PNG with further chunks before its pixels. Colour 0 is grey, 2 is RGB."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced))
    # Two bytes a row for filters: an interlaced image has nearly twice as many rows as its height.
    row = 2 + width * (3 if colour == 2 else 1) * bits // 8
    pixels = chunk(b"IDAT", zlib.compress(bytes(row * height)))
    return b"".join((PNG_SIGNATURE, header, *before, pixels, chunk(b"IEND", b"")))


def many_chunks(count: int = 1_500_000) -> bytes:
    return png([chunk(b"teSt", b"") * count])


def text_bombs() -> bytes:
    """A text and a colour profile of 200 MB each, in 200 KB each."""
    packed = zlib.compress(bytes(BOMB_BYTES), 9)
    return png([chunk(b"iCCP", b"profile\0\0" + packed), chunk(b"zTXt", b"Comment\0\0" + packed)])


def many_segments() -> bytes:
    """A JPEG with nearly five million empty comments."""
    file = encoded(Image.new("RGB", (8, 8)), "JPEG")
    return file[:2] + b"\xff\xfe\x00\x02" * (BODY_BYTES // 4) + file[2:]


GIF_HEAD = b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0x80, 0, 0) + bytes(6)
GIF_FRAME = b"\x2c" + struct.pack("<HHHHB", 0, 0, 8, 8, 0) + b"\x02\x02\x4c\x01\x00"


def many_frames(count: int = 1_000_000) -> bytes:
    return GIF_HEAD + GIF_FRAME * count + b";"


def many_blocks(blocks: int = 1_900_000) -> bytes:
    """A GIF of comments, each in millions of blocks of one byte."""
    comment = b"\x21\xfe" + b"\x01a" * blocks + b"\0"
    return GIF_HEAD + comment * (BODY_BYTES // len(comment)) + GIF_FRAME + b";"


def many_strips(count: int = 4_900_000) -> bytes:
    """A TIFF of one column whose every row is a strip of its own."""
    start = 200
    entries = [(256, 4, 1, 1), (257, 4, 1, count), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    entries += [(273, 4, count, start), (277, 3, 1, 1), (278, 4, 1, 1), (279, 4, count, start)]
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + struct.pack("<I", 0)
    return head.ljust(start, b"\0") + np.ones(count, "<u4").tobytes()


def large_body() -> bytes:
    """Noise of 6.8 megapixels that a decoder must unpack bit by bit."""
    return encoded(noise(2612, values=128), "PNG", compress_level=1)


def thread_side(kind: str) -> int:
    """The side of the largest square that the service decodes in a thread of its own, not in a worker process."""
    sides = range(1, 2000)
    return max(side for side in sides if Header(kind, side, side).decode_seconds < 0.99 * THREAD_SECONDS)


def slow_webp() -> bytes:
    """The slowest WebP of its size: full quality, with transparency."""
    return encoded(noise(thread_side("WEBP"), samples=4), "WEBP", quality=100)


def slow_jpeg() -> bytes:
    """The slowest JPEG of its size: full quality, all colour samples."""
    return _in_one_block(noise(thread_side("JPEG")), quality=100, subsampling=0)


def small_webps() -> bytes:
    """64 images in at most 17 MB: each is below the time from which a worker process decodes it."""
    return json_with(encoded(noise(thread_side("WEBP")), "WEBP", quality=80))


def deep_png() -> bytes:
    """40 megapixels of 16 bits, interlaced: the PNG that takes the most memory."""
    return png(width=SIDE_40_MP, height=SIDE_40_MP, bits=16, colour=0, interlaced=1)


REFUSED, DAMAGED, OFF = frozenset({413}), frozenset({413, 422}), frozenset({415})
LEGAL = frozenset({200})
# Where the service has little memory, its budget for decoding is too small for these.
LARGE = frozenset({200, 413})
FILES = (
    AttackFile("progressive JPEG, 982 scans, 62 KB", many_scans, REFUSED),
    AttackFile("WebP of 40 MP in 34 bytes", wide_webp, LARGE),
    AttackFile("TIFF with 4.9 million strips", many_strips, OFF),
    AttackFile("noise PNG of 6.8 MP, 19.9 MB", large_body, LARGE),
    AttackFile("JSON with 64 WebPs of 40 MP", lambda: json_with(wide_webp()), LARGE, JSON),
    AttackFile("PNG with 1.5 million empty chunks", many_chunks, REFUSED),
    AttackFile("JPEG with 5 million comments", many_segments, DAMAGED),
    AttackFile("GIF with a million frames", many_frames, REFUSED),
    AttackFile("GIF with 10 million blocks", many_blocks, REFUSED),
    AttackFile("PNG with text and profile bombs", text_bombs, DAMAGED),
    AttackFile("within limits: JPEG of 40 MP, 10 scans", most_scans, LARGE),
    AttackFile("within limits: 16-bit PNG of 40 MP", deep_png, LARGE),
    AttackFile("below 10 ms: noise WebP", slow_webp, LEGAL),
    AttackFile("below 10 ms: noise JPEG", slow_jpeg, LEGAL),
    AttackFile("below 10 ms: JSON with 64 noise WebPs", small_webps, LEGAL, JSON),
    AttackFile("below 1 ms: noise PNG of 128 × 128", lambda: encoded(noise(128), "PNG"), LEGAL),
)
