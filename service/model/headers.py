"""What an image file's header says about the cost of decoding it: known before it is paid.

Each reader walks the parts of a file (chunks, segments, blocks) without decompressing any. It reads at most
MAX_PARTS of them, so that its own time is bounded. The limits that a header must keep are in `check_header`.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from service.errors import InvalidImage, TooLarge, UnsupportedType
from service.settings import IMAGE_FORMATS

FORMATS = tuple(name.upper() for name in IMAGE_FORMATS)  # as Pillow calls them
NOT_AN_IMAGE = "the bytes are not a PNG, JPEG, WebP or GIF image, or a badly damaged one"
# A file in more parts than this is refused: Pillow walks them in Python, a few microseconds each.
MAX_PARTS = 20_000
MAX_FRAMES = 1_000
MAX_GIF_BLOCKS = 100_000
# ICC profile, EXIF and text. Pillow parses EXIF in Python.
MAX_METADATA_BYTES = 2_000_000
# Nanoseconds a pixel, measured on one core (AMD EPYC, Pillow 13) on images that compress badly, rounded up.
NANOSECONDS = {"PNG": 35.0, "JPEG": 20.0, "WEBP": 70.0, "GIF": 30.0, "TIFF": 60.0, "BMP": 20.0}
NANOSECONDS_A_SCAN = 4.0
# Bytes a pixel at the peak: the decoder's buffers, the image, and its conversion to RGB.
PEAK_BYTES = {"PNG": 12, "WEBP": 18, "GIF": 12, "TIFF": 24, "BMP": 12}
JPEG_SCALES = (8, 4, 2)
# Up to these a header bounds decoding below a millisecond.
INSTANT_PIXELS, INSTANT_FILE_BYTES, INSTANT_PARTS, INSTANT_METADATA_BYTES = 16_384, 65_536, 16, 4_096


@dataclass(slots=True)
class Header:
    """The size of an image, and what else its decoding costs."""

    format: str
    width: int = 0
    height: int = 0
    passes: int = 1  # how often the decoder goes over the pixels: scans of a progressive JPEG
    parts: int = 0
    metadata_bytes: int = 0
    frames: int = 1
    components: int = 3  # of a JPEG: 1 if grey, 4 if CMYK
    plain: bool = False  # an 8-bit PNG that is not interlaced, or a baseline JPEG

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def decode_seconds(self) -> float:
        """About how long decoding takes on one core, at full size: a reduced scale saves no entropy decoding."""
        scans = NANOSECONDS_A_SCAN * self.passes if self.format == "JPEG" else 0.0
        pixels = self.pixels * (NANOSECONDS[self.format] + scans) * 1e-9
        return pixels + self.parts * 5e-6 + self.metadata_bytes * 1e-7

    def reduction(self, side: int | None) -> int:
        """By what a JPEG's sides are divided when it is decoded, if both must keep `side`; None: nothing is reduced."""
        if self.format != "JPEG" or side is None:
            return 1
        return next((scale for scale in JPEG_SCALES if min(self.width, self.height) >= scale * side), 1)

    def decode_bytes(self, side: int | None) -> int:
        """About how much memory decoding takes at its peak, where both sides of a JPEG must keep `side`."""
        if self.format == "JPEG":
            # The coefficients of a progressive file are all kept, at whatever scale it is decoded.
            coefficients = 2 * self.components * self.pixels if self.passes > 1 else 0
            return 8 * self.pixels // self.reduction(side) ** 2 + coefficients + 2 * self.metadata_bytes
        return self.pixels * PEAK_BYTES[self.format] + 2 * self.metadata_bytes


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What one image may cost, and which formats are accepted."""

    max_pixels: int
    max_pixel_passes: int
    formats: tuple[str, ...] = FORMATS


def check_header(header: Header, limits: ImageLimits) -> None:
    """Raises TooLarge with the limit that a file exceeds, or UnsupportedType for a format that is off."""
    if header.format not in limits.formats:
        accepted = ", ".join(limits.formats)
        raise UnsupportedType(
            f"{header.format} images are not accepted here: send {accepted}; the setting `formats` turns others on"
        )
    if header.pixels > limits.max_pixels:
        size = f"{header.width}×{header.height}"
        raise TooLarge(f"the image has {size} pixels; at most {limits.max_pixels} pixels are decoded")
    for found, limit, what in (
        (header.pixels * header.passes, limits.max_pixel_passes, "pixels times scans"),
        (header.parts, MAX_PARTS, "parts (chunks, segments, blocks, strips or tiles)"),
        (header.frames, MAX_FRAMES, "frames"),
        (header.metadata_bytes, MAX_METADATA_BYTES, "bytes of ICC profile, EXIF and text"),
    ):
        if found > limit:
            raise TooLarge(f"the image has {found} {what}; at most {limit} are accepted: save it again without them")


def read_header(encoded: bytes) -> Header:
    """The header of a file in a known format; InvalidImage for anything else, or if there is no size in it."""
    if not encoded:
        raise InvalidImage("the image is empty (0 bytes)")
    reader = next((read for magic, read in READERS if encoded.startswith(magic)), None)
    if reader is None:
        raise InvalidImage(NOT_AN_IMAGE)
    try:
        header = reader(encoded)
    except (struct.error, IndexError) as error:
        raise InvalidImage(NOT_AN_IMAGE) from error
    if not header.pixels and header.parts <= MAX_PARTS:
        raise InvalidImage(NOT_AN_IMAGE)
    return header


def read_instant_header(encoded: bytes) -> Header | None:
    """The header of a small file, if it bounds the decoding below a millisecond, whatever else the file holds."""
    if len(encoded) > INSTANT_FILE_BYTES:
        return None
    read = _png if encoded.startswith(PNG_SIGNATURE) else _jpeg if encoded.startswith(JPEG_SIGNATURE) else None
    if read is None:
        return None
    try:
        header = read(encoded, INSTANT_PARTS)
    except (struct.error, IndexError):
        return None
    instant = (
        header.plain
        and 0 < header.width * header.height <= INSTANT_PIXELS
        and header.parts <= INSTANT_PARTS
        and header.metadata_bytes <= INSTANT_METADATA_BYTES
    )
    return header if instant else None


JPEG_SIGNATURE = b"\xff\xd8\xff"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_METADATA = frozenset({b"iCCP", b"eXIf", b"tEXt", b"zTXt", b"iTXt"})


def _png(encoded: bytes, max_parts: int = MAX_PARTS) -> Header:
    header = Header("PNG")
    # Width, height, bits, colour type, compression, filter, interlacing.
    header.width, header.height, bits, colour, _, _, interlaced = struct.unpack_from(">IIBBBBB", encoded, 16)
    header.plain = bits == 8 and colour in (0, 2, 6) and not interlaced
    header.passes = 2 if interlaced else 1
    at, end = 8, len(encoded) - 8
    while at < end and header.parts <= max_parts:
        length, kind = struct.unpack_from(">I4s", encoded, at)
        header.parts += 1
        if kind in PNG_METADATA:
            header.metadata_bytes += length
        elif kind == b"acTL":
            header.frames = max(1, int.from_bytes(encoded[at + 8 : at + 12], "big"))
        elif kind == b"PLTE":
            header.plain = False
        elif kind == b"IEND":
            break
        at += 12 + length
    return header


# Segments without a length: restart markers, SOI, TEM.
JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
JPEG_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF0 … SOF15
JPEG_ARITHMETIC = 5  # such a scan takes about this many times as long


def _jpeg(encoded: bytes, max_parts: int = MAX_PARTS) -> Header:
    header = Header("JPEG")
    at, slow = 2, 1
    while header.parts <= max_parts:
        marker = encoded[at + 1] if encoded[at] == 0xFF else -1
        if marker == -1 or marker in JPEG_BARE or marker == 0xFF:
            # Fill bytes, or damage that Pillow passes over byte by byte.
            at, header.parts = at + 1, header.parts + 1
            continue
        length = int.from_bytes(encoded[at + 2 : at + 4], "big")
        if marker in JPEG_SIZES:
            header.height, header.width = struct.unpack_from(">HH", encoded, at + 5)
            header.components = encoded[at + 9]
            header.plain = marker == 0xC0 and encoded[at + 4] == 8
            slow = JPEG_ARITHMETIC if marker > 0xC8 else 1
        elif marker == 0xDA:
            # In compressed data 0xFF is followed by 0 or a restart marker, so this counts the scans; a thumbnail's too.
            # Over the whole file, so that no trick with segments can hide one.
            header.passes = slow * encoded.count(b"\xff\xda")
            header.plain = header.plain and header.passes == 1
            break
        elif 0xE0 <= marker <= 0xEF or marker == 0xFE:
            header.metadata_bytes += length
        elif marker == 0xD9:
            break
        at += 2 + max(2, length)
        header.parts += 1
    return header


def _webp(encoded: bytes) -> Header:
    header = Header("WEBP")
    kind = encoded[12:16]
    if kind == b"VP8X":
        header.width = 1 + int.from_bytes(encoded[24:27], "little")
        header.height = 1 + int.from_bytes(encoded[27:30], "little")
    elif kind == b"VP8L":
        bits = int.from_bytes(encoded[21:25], "little")
        header.width, header.height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        header.width = int.from_bytes(encoded[26:28], "little") & 0x3FFF
        header.height = int.from_bytes(encoded[28:30], "little") & 0x3FFF
    at, end, frames = 12, len(encoded) - 8, 0
    while at < end and header.parts <= MAX_PARTS:
        chunk, length = struct.unpack_from("<4sI", encoded, at)
        header.parts += 1
        frames += chunk == b"ANMF"
        if chunk in (b"ICCP", b"EXIF", b"XMP "):
            header.metadata_bytes += length
        at += 8 + length + length % 2
    header.frames = max(1, frames)
    return header


def _gif(encoded: bytes) -> Header:
    header = Header("GIF")
    header.width, header.height, flags = struct.unpack_from("<HHB", encoded, 6)
    at, frames = 13 + _gif_colours(flags), 0
    while at < len(encoded) and header.parts <= MAX_PARTS and frames <= MAX_FRAMES:
        kind = encoded[at]
        if kind == 0x2C:  # an image: it may be larger than the screen
            left, top, width, height, flags = struct.unpack_from("<HHHHB", encoded, at + 1)
            header.width, header.height = max(header.width, left + width), max(header.height, top + height)
            frames += 1
            at += 11 + _gif_colours(flags)
        elif kind == 0x21:
            at += 2
        else:
            break  # the end, or damage
        blocks = 0
        while (size := encoded[at] if at < len(encoded) else 0) and blocks <= MAX_GIF_BLOCKS:
            at, blocks = at + 1 + size, blocks + 1
        if frames == 0:
            header.metadata_bytes += 255 * blocks
        at += 1
        # A block has at most 255 bytes, so a large frame has many: they count less than other parts.
        header.parts += 1 + blocks * MAX_PARTS // MAX_GIF_BLOCKS
    if not frames and header.parts <= MAX_PARTS:
        raise InvalidImage(NOT_AN_IMAGE)  # a screen without an image
    header.frames = max(1, frames)
    return header


def _gif_colours(flags: int) -> int:
    """Bytes of a colour table."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


TIFF_WIDTH, TIFF_HEIGHT, TIFF_STRIPS, TIFF_TILES = 256, 257, 273, 324
TIFF_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 16: 8}


def _tiff(encoded: bytes) -> Header:
    """The first page. BigTIFF is not read, and so refused."""
    header, order = Header("TIFF"), "<" if encoded[:2] == b"II" else ">"
    (at,) = struct.unpack_from(f"{order}I", encoded, 4)
    (entries,) = struct.unpack_from(f"{order}H", encoded, at)
    for place in range(at + 2, at + 2 + 12 * entries, 12):
        tag, kind, count = struct.unpack_from(f"{order}HHI", encoded, place)
        header.parts += 1
        if tag in (TIFF_WIDTH, TIFF_HEIGHT):
            (value,) = struct.unpack_from(f"{order}H" if kind == 3 else f"{order}I", encoded, place + 8)
            header.width, header.height = (value, header.height) if tag == TIFF_WIDTH else (header.width, value)
        elif tag in (TIFF_STRIPS, TIFF_TILES):
            header.parts += count
        else:
            header.metadata_bytes += max(0, count * TIFF_BYTES.get(kind, 8) - 4)
    return header


def _bmp(encoded: bytes) -> Header:
    header = Header("BMP")
    (size,) = struct.unpack_from("<I", encoded, 14)
    if size == 12:
        header.width, header.height = struct.unpack_from("<HH", encoded, 18)
    else:
        width, height = struct.unpack_from("<ii", encoded, 18)
        header.width, header.height = max(0, width), abs(height)
    return header


def _riff(encoded: bytes) -> Header:
    if encoded[8:12] != b"WEBP":
        raise InvalidImage(NOT_AN_IMAGE)
    return _webp(encoded)


READERS: tuple[tuple[bytes, Callable[[bytes], Header]], ...] = (
    (PNG_SIGNATURE, _png),
    (JPEG_SIGNATURE, _jpeg),
    (b"RIFF", _riff),
    (b"GIF87a", _gif),
    (b"GIF89a", _gif),
    (b"II*\0", _tiff),
    (b"MM\0*", _tiff),
    (b"BM", _bmp),
)
