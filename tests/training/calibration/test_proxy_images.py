"""Proxy OOD images: of the right shape at any size, the same for a seed, and what each kind says it keeps."""

import numpy as np
import pytest

from training.calibration.proxy_images import KINDS, ProxyImages, glyphs, mosaic, phase_scrambled, shapes


def photos(n, height, width, seed=0):
    """Smooth images with some texture, each of its own colours."""
    random = np.random.default_rng(seed)
    slope = np.linspace(0, 120, width)[None, None, :, None] * random.random((n, 1, 1, 3))
    return (slope + random.integers(0, 100, (n, 1, 1, 3)) + random.integers(0, 30, (n, height, width, 3))).astype(
        np.uint8
    )


@pytest.mark.parametrize("size", [(8, 8), (9, 31), (32, 32), (99, 100), (224, 224), (301, 225)])
def test_proxies_have_the_shape_of_images_of_any_size(size):
    """Odd, oblong, small and large images give as many proxies as asked for, none of them one of the images."""
    images = photos(5, *size)
    proxies = ProxyImages(images, 2 * len(KINDS), 0)[:]
    assert proxies.dtype == np.uint8
    assert proxies.shape == (2 * len(KINDS), *size, 3)
    assert not any((proxy == image).all() for proxy in proxies for image in images)


def test_a_seed_gives_the_same_proxies_again():
    """Thresholds that are set with them can be set again; another seed gives others; the images stay as they were."""
    images = photos(6, 32, 32)
    before = images.copy()
    first, again, other = (ProxyImages(images, 12, seed)[:] for seed in (3, 3, 4))
    assert (first == again).all()
    assert (images == before).all()
    assert (first != other).any(axis=(1, 2, 3)).all()


def test_proxies_are_the_same_in_any_order_and_in_any_number_at_a_time():
    """What is made a few at a time, or again from the middle, is what is made all at once."""
    images = photos(6, 32, 32)
    whole, parts = ProxyImages(images, 12, 3)[:], ProxyImages(images, 12, 3)
    assert (np.concatenate([parts[start : start + 5] for start in range(0, 12, 5)]) == whole).all()
    assert (parts[np.array([7, 2, 11])] == whole[[7, 2, 11]]).all()


def test_kinds_are_spread_evenly(monkeypatch):
    """Each kind makes as many proxies as any other, give or take one."""
    made = []
    counted = tuple(lambda pictures, _, kind=kind: made.append(kind) or pictures[0] for kind in range(len(KINDS)))
    monkeypatch.setattr("training.calibration.proxy_images.KINDS", counted)
    ProxyImages(photos(3, 8, 8), 4 * len(KINDS) + 1, 0)[:]
    counts = [made.count(kind) for kind in range(len(KINDS))]
    assert max(counts) - min(counts) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_grey_images_give_grey_proxies(kind):
    """Colour alone must not tell the proxies of grey images from them."""
    grey = np.repeat(photos(4, 28, 28)[..., :1], 3, axis=3)
    proxy = kind(grey, np.random.default_rng(0))
    assert np.ptp(proxy, axis=2).max() < 1e-6
    assert np.ptp(proxy) > 5


def test_phase_scrambling_keeps_amplitudes_and_the_mean_colour():
    """Every spatial frequency is as strong as before, and lies elsewhere."""
    images = photos(4, 32, 31)
    proxy = phase_scrambled(images, np.random.default_rng(0))
    amplitudes = [np.abs(np.fft.fft2(picture, axes=(0, 1))) for picture in (proxy, images[0])]
    assert amplitudes[0] == pytest.approx(amplitudes[1], abs=1e-6)
    assert proxy.mean(axis=(0, 1)) == pytest.approx(images[0].mean(axis=(0, 1)))
    assert np.abs(proxy - images[0]).mean() > 5


def test_mosaic_shows_several_images_in_their_places():
    """Every pixel is that of one of the four images at this place, and three or more of them are seen."""
    plain = np.broadcast_to(np.arange(4, dtype=np.uint8)[:, None, None, None], (4, 20, 30, 3))
    for seed in range(20):
        found = np.unique(mosaic(plain, np.random.default_rng(seed)))
        assert set(found) <= {0, 1, 2, 3}
        assert len(found) >= 3


@pytest.mark.parametrize("kind", [shapes, glyphs])
def test_drawings_use_the_colours_of_the_image(kind):
    """What is drawn lies within the range of each channel of the image, and is not plain."""
    images = photos(4, 32, 32)
    for seed in range(10):
        proxy = kind(images, np.random.default_rng(seed))
        assert (proxy.min(axis=(0, 1)) >= images[0].min(axis=(0, 1))).all()
        assert (proxy.max(axis=(0, 1)) <= images[0].max(axis=(0, 1))).all()
        assert np.ptp(proxy) > 5


def test_few_images_are_enough():
    """A single image gives proxies, and so does a plain one; none asked for is none."""
    assert ProxyImages(photos(1, 16, 16), 9, 0)[:].shape == (9, 16, 16, 3)
    assert (ProxyImages(np.full((2, 16, 16, 3), 7, np.uint8), 8, 0)[:] == 7).all()
    assert ProxyImages(photos(1, 16, 16), 0, 0)[:].shape == (0, 16, 16, 3)


def test_unusable_images_are_refused():
    """Other types, shapes and sizes are errors that say what was expected."""
    for images, n in (
        (np.zeros((2, 7, 32, 3), np.uint8), 1),
        (np.zeros((2, 32, 32, 1), np.uint8), 1),
        (np.zeros((32, 32, 3), np.uint8), 1),
        (np.zeros((2, 32, 32, 3), np.float32), 1),
        (np.zeros((0, 32, 32, 3), np.uint8), 1),
        (np.zeros((2, 32, 32, 3), np.uint8), -1),
    ):
        with pytest.raises(ValueError, match="expected"):
            ProxyImages(images, n, 0)
