"""What decoding JPEGs at a reduced scale saves and changes: time, pixels and answers for several decode margins.

    python -m benchmarks.decode_margin models/NAME/VERSION PHOTOS [--megapixels 12] [--images N] [--margins 4 2 1]

PHOTOS is a folder of JPEGs, at any depth. Each is decoded at full size and at each margin (`input.decode_margin` of the
bundle), as the service does, and the bundle answers to all of them. For comparison, the last row has what saving the
photo again at JPEG quality 75 changes. With --megapixels the photos are enlarged first, to 4:3: what enlarging leaves
out is made up by 1/f noise in proportion to the contrast around it, and each pixel gets some noise of a sensor.
"""

import argparse
import io
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from service.model.bundle import Bundle, load_bundle
from service.model.gate import Gate, OutputReader, Reading, gates_of, pairs_of
from service.model.headers import read_header
from service.model.images import Pixels, decode, needed_side
from service.model.session import Session, open_session

NO_LIMIT = 10**9
SENSOR, DETAIL = 4.0, 0.7  # of the sensor's noise, in grey levels; of the detail, in units of local contrast
ENLARGED_QUALITY, AGAIN_QUALITY = 90, 75


class Difference(NamedTuple):
    """One photo, against decoding at full size."""

    scale: int
    milliseconds: float
    pixels: float
    label: bool
    decision: bool
    certainty: float


class Model:
    """A bundle that answers to pixels with its default gate."""

    def __init__(self, bundle: Bundle) -> None:
        self.target = bundle.manifest.input
        self._session: Session = open_session(bundle, "forward", "cpu", 1, 1)
        self._read = OutputReader(bundle.manifest, "forward")
        default = bundle.manifest.default
        pairs, scores = pairs_of(bundle.manifest), gates_of(bundle.manifest)
        self._gate: Gate = pairs[default.policy] if default.score is None else scores[default.score][default.policy]

    def __call__(self, pixels: Pixels) -> tuple[Reading, bool]:
        reading = self._read(self._session.run(pixels[None]))[0]
        if not isinstance(reading, Reading):
            raise reading
        return reading, self._gate.decide(reading).accepted


def main(arguments: argparse.Namespace) -> None:
    model = Model(load_bundle(arguments.bundle))
    full = model.target.model_copy(update={"decode_margin": "full"})
    found: dict[str, list[Difference]] = {}
    whole: list[float] = []
    for photo in photos_of(arguments):
        started = time.process_time()
        expected = decode(photo, full, NO_LIMIT)
        whole.append(1000 * (time.process_time() - started))
        answer = model(expected)
        rows = [(f"margin {margin:g}", photo, margin) for margin in arguments.margins]
        for name, file, margin in [*rows, (f"saved again, quality {AGAIN_QUALITY}", saved_again(photo), None)]:
            target = full if margin is None else full.model_copy(update={"decode_margin": margin})
            started = time.process_time()
            pixels = decode(file, target, NO_LIMIT)
            spent = 1000 * (time.process_time() - started)
            reading, accepted = model(pixels)
            found.setdefault(name, []).append(
                Difference(
                    scale=read_header(file).reduction(needed_side(target)),
                    milliseconds=spent,
                    pixels=float(np.abs(pixels.astype(int) - expected).mean()),
                    label=reading.class_id != answer[0].class_id,
                    decision=accepted != answer[1],
                    certainty=abs(reading.certainty - answer[0].certainty),
                )
            )
    print(f"{len(whole)} photos; decoding and resizing at full size takes {statistics.median(whole):.1f} ms (median)\n")
    print("| | photos at 1/1, 1/2, 1/4, 1/8 | ms | pixels differ by | other label | other decision | certainty, p95 |")
    print("|---|---|---|---|---|---|---|")
    for name, differences in found.items():
        print(row(name, differences))


def row(name: str, differences: list[Difference]) -> str:
    scales = [sum(difference.scale == scale for difference in differences) for scale in (1, 2, 4, 8)]
    return (
        f"| {name} | {', '.join(map(str, scales))} | {statistics.median(d.milliseconds for d in differences):.1f} "
        f"| {statistics.mean(d.pixels for d in differences):.2f} of 255 | {sum(d.label for d in differences)} "
        f"| {sum(d.decision for d in differences)} | {np.quantile([d.certainty for d in differences], 0.95):.3f} |"
    )


def photos_of(arguments: argparse.Namespace) -> Iterator[bytes]:
    """The files, or what they are enlarged to; drawn with a fixed seed where there are more than asked for."""
    random = np.random.default_rng(0)
    paths = sorted(path for path in arguments.photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise SystemExit(f"{arguments.photos} holds no JPEGs.")
    chosen = random.permutation(len(paths))[: arguments.images]
    if arguments.megapixels is None:
        yield from (paths[index].read_bytes() for index in chosen)
        return
    height = round((arguments.megapixels * 1e6 * 3 / 4) ** 0.5)
    size = (height * 4 // 3, height)
    detail = fractal(*size, random)
    for index in chosen:
        with Image.open(paths[index]) as photo:
            yield enlarged(photo.convert("RGB"), size, np.roll(detail, index * 97, (0, 1)), random)


def fractal(width: int, height: int, random: np.random.Generator) -> np.ndarray:
    """Noise whose amplitude falls as 1/f, without the waves that an enlarged photo has itself."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    waves = (frequency > 1 / 32) / frequency * np.exp(2j * np.pi * random.random(frequency.shape))
    noise = np.fft.irfft2(waves, (height, width))
    return np.asarray(noise / noise.std(), np.float32)


def enlarged(photo: Image.Image, size: tuple[int, int], detail: np.ndarray, random: np.random.Generator) -> bytes:
    if photo.height > photo.width:
        size, detail = size[::-1], detail.T
    contrast = np.hypot(*np.gradient(np.asarray(photo.convert("L"), np.float32)))
    around = np.asarray(Image.fromarray(np.clip(contrast, 2, 40)).resize(size, Image.Resampling.BILINEAR))
    noise = DETAIL * around * detail + SENSOR * random.standard_normal(detail.shape, np.float32)
    pixels = np.asarray(photo.resize(size, Image.Resampling.LANCZOS)) + noise[..., None]
    return encoded(Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), ENLARGED_QUALITY)


def saved_again(photo: bytes) -> bytes:
    with Image.open(io.BytesIO(photo)) as image:
        exif = image.getexif()
        return encoded(image.convert("RGB"), AGAIN_QUALITY, exif)


def encoded(image: Image.Image, quality: int, exif: Image.Exif | None = None) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, exif=exif or Image.Exif())
    return file.getvalue()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--megapixels", type=float)
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--margins", type=float, nargs="+", default=[4.0, 3.0, 2.0, 1.0])
    return parser.parse_args()


if __name__ == "__main__":
    main(parse())
