"""Images that are hard to tell, made of training images."""

import pytest
import torch

from training.learning.augmentation.hard_images import CHANGES, harden


def photos(n, height=32, width=32, seed=1):
    """Smooth random images, so that neighbouring pixels are alike as in photos."""
    generator = torch.Generator().manual_seed(seed)
    coarse = 255 * torch.rand(n, 3, 6, 6, generator=generator)
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255).permute(0, 2, 3, 1)


def made(images, seed=0):
    return harden(images.to(torch.uint8), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (28, 28), (17, 23), (2, 2)])
@pytest.mark.parametrize("n", [1, 3, 4 * len(CHANGES)])
def test_any_number_of_images_of_any_size_keeps_its_shape(n, height, width):
    """uint8 images of the same shape come back, however few or small they are."""
    images = photos(n, height, width).to(torch.uint8)
    hard = made(images)
    assert (hard.dtype, hard.shape) == (torch.uint8, images.shape)


def test_a_seed_means_the_same_images_and_another_seed_others():
    """What a step sees follows from its generator alone."""
    images = photos(44)
    assert torch.equal(made(images, 3), made(images, 3))
    assert not torch.equal(made(images, 3), made(images, 4))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_every_kind_changes_its_images(change):
    """No kind hands images back nearly as they were, but for the one puzzle of 24 whose four pieces fall into place."""
    images = photos(80)
    hard = change(images, torch.Generator().manual_seed(0)).clamp(0, 255)
    changed = (hard - images).abs().mean(dim=(1, 2, 3)) > 5
    assert changed.float().mean() > 0.95


def changed(name, images):
    (change,) = [change for change in CHANGES if change.__name__ == name]
    return change(images, torch.Generator().manual_seed(0))


def test_a_puzzle_and_scattered_pixels_keep_every_pixel():
    """Shuffled images have the same pixels as before, in other places."""
    images = photos(8)
    for name in ("_shuffle", "_scatter"):
        hard = changed(name, images)
        for before, after in zip(images, hard, strict=True):
            assert torch.equal(before.reshape(-1, 3).sort(0).values, after.reshape(-1, 3).sort(0).values)


def test_a_window_shows_a_part_of_the_image_and_else_the_mean():
    """At most a quarter of the pixels is left, at its place; all others are the mean colour."""
    images = photos(30)
    hard = changed("_window", images)
    kept = (hard == images).all(dim=3)
    outside = (hard - images.mean(dim=(0, 1, 2))).abs().amax(dim=3) < 1e-3
    assert (kept | outside).all()
    share = kept.float().mean(dim=(1, 2))
    assert (share > 0.02).all()
    assert (share < 0.27).all()


def test_noise_leaves_something_to_be_seen():
    """A noisy image is still like its own image and like no other: pure noise stays a foreign kind of image."""
    images = photos(40)
    hard = changed("_noise", images)

    def alike(a, b):
        return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]

    own = torch.stack([alike(a, b) for a, b in zip(images, hard, strict=True)])
    other = torch.stack([alike(a, b) for a, b in zip(images.roll(1, 0), hard, strict=True)])
    assert own.min() > 0.25
    assert other.abs().mean() < own.mean() / 2
