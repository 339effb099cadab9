"""Augmentation on whole batches."""

import pytest
import torch

from training.data.normalise import normalise
from training.learning.augmentation.batch import augment, pad_images, shrink_early
from training.recipe import Augmentation


def batch_of(n=6, size=8):
    return torch.randint(0, 256, (n, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def run(images, *, epoch=0, seed=0, **changes):
    settings = {
        "crop_padding": 2,
        "padding_mode": "reflect",
        "flip": "random",
        "cutout_size": 0,
        "cutout_share": 0.0,
    }
    augmentation = Augmentation(**(settings | changes))
    padded = pad_images(images, augmentation)
    return augment(padded, torch.arange(len(images)), epoch, augmentation, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_every_crop_is_a_window_of_its_own_padded_image(mode):
    """Each crop, mirrored or not, occurs in its image padded the way numpy pads it."""
    import numpy as np

    images = batch_of()
    crops, _ = run(images, padding_mode=mode)
    for image, crop in zip(images.numpy(), crops.numpy(), strict=True):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode=mode)
        windows = [padded[y : y + 8, x : x + 8] for y in range(5) for x in range(5)]
        assert any((crop == w).all() or (crop[:, ::-1] == w).all() for w in windows)


def test_no_augmentation_is_the_identity():
    """With no padding, no flip and no Cutout the batch comes back as it was."""
    images = batch_of()
    crops, kept = run(images, crop_padding=0, flip="none")
    assert torch.equal(crops, images)
    assert kept.all()


def test_alternate_flip_shows_both_sides_in_two_epochs():
    """An image shown as it is in one epoch is mirrored in the next."""
    images = batch_of(64)
    first, _ = run(images, crop_padding=0, flip="alternate", epoch=0)
    second, _ = run(images, crop_padding=0, flip="alternate", epoch=1)
    assert torch.equal(first.flip(2), second)
    mirrored = [(a != b).any().item() for a, b in zip(first, images, strict=True)]
    assert 16 < sum(mirrored) < 48


def test_cutout_blanks_one_square_in_the_chosen_share():
    """A share of 1 cuts a square (or what of it lies inside) from every image, a share of 0 from none."""
    images = batch_of(200)
    _, kept = run(images, cutout_size=4, cutout_share=1.0)
    holes = (~kept).sum(dim=(1, 2))
    assert holes.max() == 16
    assert holes.min() >= 4  # a hole centred in a corner keeps a quarter of itself inside
    rows, columns = (~kept).any(2).sum(1), (~kept).any(1).sum(1)
    assert torch.equal(holes, rows * columns)
    _, kept = run(images, cutout_size=4, cutout_share=0.0)
    assert kept.all()


def test_same_seed_same_batch():
    """The generator alone decides: equal seeds give equal batches, different seeds different ones."""
    images = batch_of(32)
    a, b, c = (run(images, seed=s, cutout_size=4, cutout_share=0.5) for s in (3, 3, 4))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])
    assert not torch.equal(a[0], c[0])


def test_normalise_by_hand():
    """Pixel 255 with mean 0.5 and std 0.25 becomes 2, and the layout becomes channels first."""
    out = normalise(torch.full((1, 2, 4, 3), 255, dtype=torch.uint8), torch.full((3,), 0.5), torch.full((3,), 0.25))
    assert out.shape == (1, 3, 2, 4)
    assert torch.allclose(out, torch.tensor(2.0))


def test_images_are_shrunk_early_and_never_late():
    """Up to the share of training the recipe names, a step sees smaller images of the same mean colour."""
    images = torch.rand(2, 3, 32, 32)
    recipe = Augmentation(early_scale=0.75, early_share=0.5)
    shrunk = shrink_early(images, 0.49, recipe)
    assert shrunk.shape == (2, 3, 24, 24)
    assert torch.allclose(shrunk.mean((2, 3)), images.mean((2, 3)), atol=0.01)
    assert shrink_early(images, 0.5, recipe) is images
    assert shrink_early(images, 0.0, Augmentation()) is images
