"""Files that cost a decoder far more than their size suggests, made in memory."""

import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image

from benchmarks.attacks import files as attack_files
from benchmarks.attacks.files import chunk, encoded

wide_webp = cache(attack_files.wide_webp)


@cache
def many_scans(scans: int = 982, side: int = 1000) -> bytes:
    """A progressive JPEG with so many scans more than it needs: each costs a pass over all pixels."""
    file = encoded(Image.new("L", (side, side), 128), "JPEG", progressive=True)
    return attack_files.with_scans(file, scans + file.count(b"\xff\xda"))


def png(*before: bytes, width: int = 8, height: int = 8) -> bytes:
    """A small RGB PNG with further chunks before its pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress((b"\0" + bytes(3 * width)) * height))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(before) + pixels + chunk(b"IEND", b"")


@cache
def many_chunks(count: int = 100_000) -> bytes:
    return png(chunk(b"tEXt", b"a\0b") * count)


def many_frames(count: int = 100_000) -> bytes:
    """An APNG that announces so many frames."""
    return png(chunk(b"acTL", struct.pack(">II", count, 0)))


@cache
def many_segments(count: int = 100_000) -> bytes:
    """A JPEG with so many empty comments."""
    file = encoded(Image.new("RGB", (8, 8)), "JPEG")
    return file[:2] + b"\xff\xfe\x00\x02" * count + file[2:]


def large_metadata(size: int = 3_000_000) -> bytes:
    return png(chunk(b"iCCP", b"profile\0\0" + bytes(size)))


@cache
def many_strips(count: int = 1_000_000) -> bytes:
    """A TIFF of one column whose every row is a strip of its own."""
    entries = [(256, 4, 1, 1), (257, 4, 1, count), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, count, 200)]
    entries += [(277, 3, 1, 1), (278, 4, 1, 1), (279, 4, count, 200)]
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries)) + table + struct.pack("<I", 0)
    return head.ljust(200, b"\0") + np.ones(count, "<u4").tobytes()


@cache
def slow_png(side: int = 2200) -> bytes:
    """Noise of many megapixels: a legal file that takes a worker a while."""
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    return encoded(Image.fromarray(noise), "PNG", compress_level=1)
