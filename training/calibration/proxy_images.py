"""Proxy OOD images, made from in-distribution images: what a gate is set against where no OOD images are at hand.

They share colours or textures with the images that they are made from and show nothing the model knows. None is of a
kind in `training.learning.augmentation.hard_images`: the confidence branch is taught with those, and would look better
on them than it is. How scores fare on each kind, next to real OOD images, is in training/LOG.md.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from service.model.scores import Floats
from training.graphs.image_views import AnyImages

Pictures = NDArray[np.uint8]
Kind = Callable[[Pictures, np.random.Generator], Floats]
Point = tuple[float, float]

SMALLEST = 8  # pixels: below that, no kind can be told from another
SOURCES = 4  # images that one proxy may be made of; only the mosaic shows more than the first


class ProxyImages:
    """`n` proxies of uint8 [N,H,W,3] images, of the same size, each kind as often as any other.

    A seed gives the same proxies again. They are made in their order, when they are used: photos and their proxies are
    never in memory all together. Who asks for an earlier one waits until all before it are made again.
    """

    def __init__(self, images: AnyImages, n: int, seed: int) -> None:
        if len(images.shape) != 4 or images.shape[3] != 3 or min(images.shape[1:3]) < SMALLEST:
            raise ValueError(
                f"images have the shape {list(images.shape)}: expected [N,H,W,3] of at least {SMALLEST}×{SMALLEST}"
            )
        if isinstance(images, np.ndarray) and images.dtype != np.uint8:
            raise ValueError(f"images are {images.dtype}: expected uint8")
        if not len(images) or n < 0:
            raise ValueError(f"{n} proxies of {len(images)} images: expected at least one image and no negative number")
        self._images, self._n, self._seed = images, n, seed
        self._next, self._made = 0, self._in_order()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._n, *self._images.shape[1:]

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, key: slice | NDArray[np.int64], /) -> Pictures:
        wanted = np.arange(self._n)[key]
        proxies = np.empty((len(wanted), *self.shape[1:]), np.uint8)
        for row, index in enumerate(wanted):
            if index < self._next:
                self._next, self._made = 0, self._in_order()
            while self._next <= index:
                proxies[row] = next(self._made)
                self._next += 1
        return proxies

    def _in_order(self) -> Iterator[Pictures]:
        random = np.random.default_rng(self._seed)
        for i in range(self._n):
            kind = KINDS[i % len(KINDS)]
            drawn = random.choice(len(self._images), SOURCES, replace=len(self._images) < SOURCES)
            sources = self._images[drawn if kind is mosaic else drawn[:1]]  # an image that is not shown is not decoded
            yield np.rint(np.clip(kind(sources, random), 0, 255)).astype(np.uint8)


def phase_scrambled(pictures: Pictures, random: np.random.Generator) -> Floats:
    """Keeps the strength of every spatial frequency, and draws where its waves lie; all channels move alike."""
    picture = pictures[0].astype(np.float64)
    height, width = picture.shape[:2]
    turned = np.angle(np.fft.rfft2(random.normal(size=(height, width))))  # of a real image: its symmetry is kept
    turned[0, 0] = 0  # the mean colour stays
    spectrum = np.fft.rfft2(picture, axes=(0, 1)) * np.exp(1j * turned)[..., None]
    return np.asarray(np.fft.irfft2(spectrum, s=(height, width), axes=(0, 1)), np.float64)


def mosaic(pictures: Pictures, random: np.random.Generator) -> Floats:
    """Quarters, or three or four strips, of different pictures, each in its own place."""
    whole: Floats = pictures[0].astype(np.float64)
    height, width = whole.shape[:2]
    if random.random() < 0.5:
        row, column = (round(length * random.uniform(0.35, 0.65)) for length in (height, width))
        whole[:row, column:] = pictures[1, :row, column:]
        whole[row:, :column] = pictures[2, row:, :column]
        whole[row:, column:] = pictures[3, row:, column:]
        return whole
    strips, across = int(random.integers(3, SOURCES + 1)), random.random() < 0.5
    edges = np.linspace(0, height if across else width, strips + 1).round().astype(int)
    for i in range(1, strips):
        part = np.s_[edges[i] : edges[i + 1]] if across else np.s_[:, edges[i] : edges[i + 1]]
        whole[part] = pictures[i][part]
    return whole


def shapes(pictures: Pictures, random: np.random.Generator) -> Floats:
    """Six to fifteen ellipses and polygons, one above the other, in the colours of a picture."""
    canvas, draw, colours = _canvas(pictures[0], random, 15)
    for colour in colours[: int(random.integers(6, 16))]:
        centre, radii = random.uniform(0, 1, 2) * canvas.size, random.uniform(0.08, 0.35, 2) * min(canvas.size)
        corners = int(random.integers(3, 9))  # with eight: an ellipse
        if corners == 8:
            draw.ellipse([*(centre - radii), *(centre + radii)], fill=colour)
        else:
            angles = np.sort(random.uniform(0, 2 * math.pi, corners))
            points = centre + np.stack([np.cos(angles), np.sin(angles)], axis=1) * radii
            draw.polygon([(float(px), float(py)) for px, py in points], fill=colour)
    return _shrunk(canvas, pictures)


def glyphs(pictures: Pictures, random: np.random.Generator) -> Floats:
    """One to three signs of curved strokes on a plain ground, in colours of a picture: like writing."""
    canvas, draw, colours = _canvas(pictures[0], random, 40)
    ground = np.asarray(canvas.getpixel((0, 0)), np.float64)
    ink = max(colours, key=lambda colour: float(np.abs(np.asarray(colour) - ground).sum()))
    signs = int(random.integers(1, 4))
    box = np.array([canvas.width / signs, canvas.height])
    thick = max(1, round(min(box) * random.uniform(0.08, 0.16)))
    for sign in range(signs):
        for _ in range(int(random.integers(2, 5))):
            knots = random.uniform(0.12, 0.88, (3, 2)) * box + (sign * box[0], 0)
            draw.line(_curve(knots), fill=ink, width=thick, joint="curve")
    return _shrunk(canvas, pictures)


def _curve(knots: Floats) -> list[Point]:
    """Points of the quadratic Bézier curve of three knots."""
    t = np.linspace(0, 1, 17)[:, None]
    points = (1 - t) ** 2 * knots[0] + 2 * t * (1 - t) * knots[1] + t**2 * knots[2]
    return [(float(x), float(y)) for x, y in points]


def _canvas(
    picture: Pictures, random: np.random.Generator, colours: int
) -> tuple[Image.Image, ImageDraw.ImageDraw, list[tuple[int, ...]]]:
    """A plain ground, larger than the picture so that shrinking it smooths the edges, and `colours` of its pixels."""
    height, width = picture.shape[:2]
    scale = _scale(height, width)
    pixels = picture.reshape(-1, 3)
    drawn = [tuple(map(int, colour)) for colour in pixels[random.integers(0, len(pixels), colours + 1)]]
    canvas = Image.new("RGB", (width * scale, height * scale), drawn[0])
    return canvas, ImageDraw.Draw(canvas), drawn[1:]


def _shrunk(canvas: Image.Image, pictures: Pictures) -> Floats:
    return np.asarray(canvas.reduce(_scale(*pictures.shape[1:3])), np.float64)


def _scale(height: int, width: int) -> int:
    return 4 if min(height, width) < 100 else 2


KINDS: tuple[Kind, ...] = (phase_scrambled, mosaic, shapes, glyphs)
