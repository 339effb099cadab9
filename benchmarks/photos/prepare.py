"""Makes what a run needs: the photos, the bundle in a models folder of its own, and the answers to compare with.

    python -m benchmarks.photos.prepare BUNDLE FOLDER

It runs in a process of its own: NumPy and ONNX Runtime stay out of the process that measures, where they would share
their memory with confgate's and make it look smaller. FOLDER gets PHOTO.jpg, models/NAME/VERSION and facts.json: what
peers must know about the bundle, and the class and probability that each photo gets.

The photos are synthetic, so that a clean clone has them: noise with the spectrum of photos (amplitude falls with the
frequency) and some shapes with edges, as JPEG with 4:2:0 chroma, compressed until they have as many bytes as photos.
"""

import argparse
import io
import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.photos.plan import PHOTOS, Photo
from service.model.bundle import load_bundle
from service.model.images import decode
from service.model.session import open_session

Plane = npt.NDArray[np.float32]


def noise(generator: np.random.Generator, width: int, height: int, steepness: float) -> Plane:
    """Noise whose amplitude falls with frequency ** steepness; mean 0, standard deviation 1."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]).astype(np.float32)
    frequency[0, 0] = 1
    spectrum = np.fft.rfft2(generator.standard_normal((height, width), np.float32)) / frequency**steepness
    spectrum[0, 0] = 0
    plane = np.fft.irfft2(spectrum, s=(height, width)).astype(np.float32)
    normal: Plane = plane / plane.std()
    return normal


def photo_like(width: int, height: int, seed: int = 0) -> Image.Image:
    """An image with the statistics of a photo: detail at every scale, edges, and colours that change slowly."""
    generator = np.random.default_rng(seed)
    light = noise(generator, width, height, 1.1)
    y, x = np.ogrid[:height, :width]
    for _ in range(12):
        centre_x, centre_y = generator.uniform(0, width), generator.uniform(0, height)
        radius_x, radius_y = generator.uniform(0.05, 0.3, 2) * min(width, height)
        light[((x - centre_x) / radius_x) ** 2 + ((y - centre_y) / radius_y) ** 2 < 1] += generator.normal()
    planes = [128 + 48 * light, *(128 + 16 * noise(generator, width, height, 1.5) for _ in range(2))]
    stacked = np.stack(planes, axis=-1).clip(0, 255).astype(np.uint8)
    return Image.fromarray(stacked, "YCbCr").convert("RGB")


def jpeg(photo: Photo) -> bytes:
    """The best quality that has no more bytes than the photo should."""
    image = photo_like(photo.width, photo.height)
    for quality in range(95, 10, -3):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality, subsampling="4:2:0")
        if file.tell() <= photo.most_bytes:
            return file.getvalue()
    raise ValueError(f"no JPEG quality brings {photo.name} down to {photo.most_bytes} bytes")


def prepare(bundle: Path, folder: Path) -> None:
    opened = load_bundle(bundle)
    manifest = opened.manifest
    target = folder / "models" / manifest.name / str(manifest.version)
    shutil.rmtree(folder / "models", ignore_errors=True)
    shutil.copytree(bundle, target)
    session = open_session(opened, "forward", "cpu", 1)
    answers = {}
    for photo in PHOTOS:
        path = folder / photo.file
        if not path.exists():
            path.write_bytes(jpeg(photo))
        logits = session.run(decode(path.read_bytes(), manifest.input, 10**8)[None])["logits"][0] / manifest.temperature
        shares = np.exp(logits - logits.max())
        answers[photo.name] = [int(logits.argmax()), float(shares.max() / shares.sum())]
    shape = manifest.input
    if shape.resize != "fit_crop":
        raise SystemExit(f"the peers crop photos to the network's proportions; {bundle} has resize = {shape.resize!r}")
    facts = {
        "bundle": f"{manifest.name}/{manifest.version}",
        "models": str((folder / "models").resolve()),
        "graph": str((target / manifest.graphs["forward"].file).resolve()),
        "sha256": manifest.graphs["forward"].sha256,
        "labels": list(manifest.labels),
        "temperature": manifest.temperature,
        "width": shape.width,
        "height": shape.height,
        "crop_fraction": shape.crop_fraction,
        "interpolation": shape.interpolation,
        # As service.model.images decodes large JPEGs at a reduced scale; other pixels would be another answer.
        "draft_side": 2 * round(max(shape.width, shape.height) / shape.crop_fraction),
        "answers": answers,
        "bytes": {photo.name: (folder / photo.file).stat().st_size for photo in PHOTOS},
    }
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    prepare(arguments.bundle, arguments.folder)


if __name__ == "__main__":
    main()
