"""Hard images, made from training images, for the confidence branch to learn from.

A classifier that is nearly always correct on its training images gives the branch few examples of doubt. It
misclassifies many of the hard images, and the branch learns what the features look like then. No OOD images are needed.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Change = Callable[[Tensor, torch.Generator], Tensor]


def harden(images: Tensor, generator: torch.Generator) -> Tensor:
    """uint8 [N,H,W,3] → the same shape; each kind of change is applied to an equal share of the images.

    The shares follow the order of the images, which is random in a batch.
    """
    # Drawn on the CPU, so that a seed gives the same on every device.
    parts = torch.tensor_split(images.cpu().float(), len(CHANGES))
    changed = [change(part, generator) if len(part) else part for change, part in zip(CHANGES, parts, strict=True)]
    return torch.cat(changed).clamp(0, 255).to(torch.uint8).to(images.device)


def _window(images: Tensor, generator: torch.Generator) -> Tensor:
    """Keeps a square window, a fifth to half of the image wide; the rest gets the mean colour."""
    n, height, width, _ = images.shape
    side = _uniform(n, 0.2, 0.5, generator)
    rows, columns = (_span(length, side, generator) for length in (height, width))
    inside = rows[:, :, None, None] & columns[:, None, :, None]
    return torch.where(inside, images, images.mean(dim=(0, 1, 2)))


def _span(length: int, share: Tensor, generator: torch.Generator) -> Tensor:
    """[N, length]: for each image a run of True that is `share` long, anywhere."""
    size = (share * length).round().clamp(min=1)
    first = (torch.rand(len(share), generator=generator) * (length - size + 1)).floor()
    place = torch.arange(length)
    return (place >= first[:, None]) & (place < (first + size)[:, None])


def _shuffle(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffles 2×2, 4×4, 8×8 or 16×16 pieces; what is left over at two edges is cut off."""
    parts = torch.tensor_split(images, 4)
    return torch.cat([_shuffled(part, pieces, generator) for part, pieces in zip(parts, (2, 4, 8, 16), strict=True)])


def _scatter(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffles all pixels: the colours stay, and nothing can be recognised."""
    n, height, width, channels = images.shape
    order = torch.rand(n, height * width, generator=generator).argsort(1)
    return images.reshape(n, -1, channels)[torch.arange(n)[:, None], order].reshape(images.shape)


def _shuffled(images: Tensor, pieces: int, generator: torch.Generator) -> Tensor:
    n, height, width, channels = images.shape
    h, w = height // pieces, width // pieces
    if n == 0 or h == 0 or w == 0:
        return images
    tiles = images[:, : h * pieces, : w * pieces].reshape(n, pieces, h, pieces, w, channels)
    tiles = tiles.permute(0, 1, 3, 2, 4, 5).reshape(n, pieces**2, h, w, channels)
    order = torch.rand(n, pieces**2, generator=generator).argsort(1)
    tiles = tiles[torch.arange(n)[:, None], order].reshape(n, pieces, pieces, h, w, channels)
    whole = tiles.permute(0, 1, 3, 2, 4, 5).reshape(n, h * pieces, w * pieces, channels)
    return _resized(whole, height, width)


def _blend(images: Tensor, generator: torch.Generator) -> Tensor:
    """Blends in 30 to 50 % of another image."""
    own = _uniform(len(images), 0.5, 0.7, generator)[:, None, None, None]
    return own * images + (1 - own) * images.roll(1, 0)


def _noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Replaces 10 to 60 % by noise. Never all: pure noise is an OOD set that detection is measured on."""
    own = _uniform(len(images), 0.4, 0.9, generator)[:, None, None, None]
    return own * images + (1 - own) * 255 * torch.rand(images.shape, generator=generator)


def _coarse(images: Tensor, generator: torch.Generator) -> Tensor:
    """Lowers the resolution to a tenth to a quarter."""
    _, height, width, _ = images.shape
    share = float(_uniform(1, 0.1, 0.25, generator))
    small = _resized(images, max(1, round(height * share)), max(1, round(width * share)))
    return _resized(small, height, width)


def _pale(images: Tensor, generator: torch.Generator) -> Tensor:
    """Removes most of the contrast, at a random brightness."""
    n = len(images)
    contrast = _uniform(n, 0.05, 0.4, generator)[:, None, None, None]
    brightness = _uniform(n, 0.1, 0.7, generator)[:, None, None, None] * 255
    return (images - images.mean(dim=(1, 2, 3), keepdim=True)) * contrast + brightness


def _detail(images: Tensor, generator: torch.Generator) -> Tensor:
    """Enlarges a detail that is a fifth to two fifths of the image wide."""
    return _zoomed(images, _uniform(len(images), 0.2, 0.4, generator), generator)


def _distant(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shrinks the image to a quarter to half of its width, and stretches its edge pixels around it."""
    return _zoomed(images, 1 / _uniform(len(images), 0.25, 0.5, generator), generator)


def _zoomed(images: Tensor, scale: Tensor, generator: torch.Generator) -> Tensor:
    """What a frame shows that is `scale` times as wide as the image and placed at random."""
    n, height, width, channels = images.shape
    shift = (torch.rand(n, 2, generator=generator) * 2 - 1) * (1 - scale).abs()[:, None]
    frame = torch.zeros(n, 2, 3)
    frame[:, 0, 0] = frame[:, 1, 1] = scale
    frame[:, :, 2] = shift
    grid = F.affine_grid(frame, [n, channels, height, width], align_corners=False)
    return _last(F.grid_sample(_first(images), grid, padding_mode="border", align_corners=False))


def _colours(images: Tensor, generator: torch.Generator) -> Tensor:
    """Permutes the channels, dims each, and inverts some."""
    n = len(images)
    order = torch.rand(n, 3, generator=generator).argsort(1)[:, None, None, :].expand_as(images)
    strength = _uniform(n * 3, -1.0, 1.0, generator).view(n, 1, 1, 3)
    dimmed = images.gather(3, order) * strength
    return torch.where(strength < 0, dimmed + 255, dimmed)


def _contours(images: Tensor, generator: torch.Generator) -> Tensor:
    """Draws white contours on black."""
    grey = images.mean(dim=3)
    steps = (grey - grey.roll(1, 1)).abs() + (grey - grey.roll(1, 2)).abs()
    strength = _uniform(len(images), 1.0, 5.0, generator)[:, None, None]
    return (steps * strength)[..., None].expand_as(images)


CHANGES: tuple[Change, ...] = (
    *(_window, _shuffle, _scatter, _blend, _noise, _coarse, _pale, _detail, _distant, _colours, _contours),
)


def _uniform(n: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(n, generator=generator)


def _resized(images: Tensor, height: int, width: int) -> Tensor:
    if images.shape[1:3] == (height, width):
        return images
    return _last(F.interpolate(_first(images), (height, width), mode="bilinear", antialias=True))


def _first(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2)


def _last(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1)
