"""Mixup and CutMix on batches whose pixels say which image they come from."""

import pytest
import torch

from training.errors import RecipeError
from training.learning.augmentation.mix import mix, next_of
from training.recipe import Augmentation, load_recipe


def numbered(count=4, height=10, width=20):
    return torch.arange(count, dtype=torch.float32)[:, None, None, None].expand(count, 3, height, width).clone()


def mixed(step, **settings):
    return mix(numbered(), Augmentation(**settings), torch.Generator().manual_seed(step))


@pytest.mark.parametrize("settings", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.2, "cutmix": 1.0}])
def test_each_image_holds_its_share_of_the_next(settings):
    """The mean of image k is own · k + (1 − own) · the number of the image after it, in every batch."""
    shares = set()
    for step in range(30):
        found = mixed(step, **settings)
        own, after = torch.arange(4.0), next_of(torch.arange(4.0))
        expected = found.own * own + (1 - found.own) * after
        torch.testing.assert_close(found.images.mean(dim=(1, 2, 3)), expected, atol=1e-4, rtol=0)
        assert 0 <= found.own <= 1
        shares.add(found.own)
    assert len(shares) > 10


def test_cutmix_puts_a_rectangle_and_mixup_blends():
    """After CutMix every pixel is of one of two images, and those of the next one fill a rectangle."""
    for step in range(20):
        taken = mixed(step, cutmix=1.0).images[0, 0]
        assert set(taken.unique().tolist()) <= {0.0, 1.0}
        rows, columns = torch.nonzero(taken.sum(1)).flatten(), torch.nonzero(taken.sum(0)).flatten()
        assert int(taken.sum()) == len(rows) * len(columns)
    assert len(mixed(1, mixup=0.8).images[0].unique()) == 1


def test_without_mixing_a_batch_stays():
    """Both are off by default, and refused beside a confidence branch."""
    found = mixed(0)
    assert found.own == 1
    assert torch.equal(found.images, numbered())
    with pytest.raises(RecipeError, match=r"augment\.cutmix are for confidence\.enabled=false"):
        load_recipe("compact-cifar10", ["augment.cutmix=1"])
