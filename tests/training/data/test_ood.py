"""Out-of-distribution images: noise, photos that come in pairs, and their combination."""

import hashlib
import tracemalloc

import numpy as np
import pytest

from service.model.bundle import Input
from service.model.images import fit_array
from training.data.noise import noise
from training.data.ood import all_images_parts, load_ood
from training.errors import DataError

TARGET = Input(width=4, height=4, resize="stretch", interpolation="bicubic")


def write_photos(root, name, images=40, kind=0):
    """Image i of every set made here has i in its first pixel, so that a test can see which photos it got."""
    x = np.full((images, 4, 4, 3), kind, np.uint8)
    x[:, 0, 0, 0] = np.arange(images)
    np.savez(root / f"{name}.npz", x=x)


def photos_of(images):
    return set(images[:, 0, 0, 0].tolist())


def test_uniform_noise_is_uniform_over_all_levels():
    """10,000 images; every level of a byte is equally likely (χ² over 256 levels), and values are independent."""
    images = noise("uniform", 8)[:]
    assert images.shape == (10_000, 8, 8, 3)
    counts = np.bincount(images.ravel(), minlength=256)
    expected = images.size / 256
    assert ((counts - expected) ** 2 / expected).sum() < 350  # 255 degrees of freedom: p < 0.0001 beyond
    assert abs(np.corrcoef(images[:, 0, 0, 0], images[:, 0, 0, 1])[0, 1]) < 0.05


def test_gaussian_noise_has_the_moments_of_the_paper():
    """N(0.5, 1) clipped to [0, 1]: 30.85 % of values at each end, standard deviation 1 in between."""
    from scipy.stats import norm

    values = noise("gaussian", 8)[:] / 255
    at_end = norm.cdf(-0.5)
    assert (values == 0).mean() == pytest.approx(at_end + norm.cdf(0.5 / 255 - 0.5) - norm.cdf(-0.5), abs=2e-3)
    assert (values == 1).mean() == pytest.approx(at_end, abs=3e-3)
    assert values.mean() == pytest.approx(0.5, abs=2e-3)
    assert (values < 0.25).mean() == pytest.approx(norm.cdf(-0.25), abs=3e-3)


def test_noise_is_the_same_every_time():
    """Noise follows from its name and size alone."""
    assert np.array_equal(noise("gaussian", 4)[:], noise("gaussian", 4)[:])
    assert not np.array_equal(noise("gaussian", 4)[:], noise("uniform", 4)[:])


@pytest.mark.parametrize(
    ("name", "side", "digest"),
    [
        ("uniform", 32, "d3926809a0bfbf29"),
        ("gaussian", 32, "555a54b2a321290f"),
        ("uniform", 7, "27bfbc816b4f4e3f"),  # an odd number of values, where the generator keeps half a draw
        ("gaussian", 7, "e76ea450d43096bc"),
    ],
)
def test_noise_is_that_of_recorded_evaluations(name, side, digest):
    """Evaluations made when noise was drawn whole are combined with new ones: no value may change."""
    assert hashlib.sha256(noise(name, side)[:].tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("name", ["uniform", "gaussian"])
def test_noise_is_the_same_in_any_order(name):
    """Blocks that are drawn alone, backwards or from a selection have the images of the whole."""
    whole = noise(name, 5, 6)[:]
    some = np.random.default_rng(0).permutation(len(whole))[:90]
    assert np.array_equal(noise(name, 5, 6).select(some)[:], whole[some])
    drawn = noise(name, 5, 6)
    for part in (slice(9_990, 10_000), slice(15, 47), slice(0, 0), slice(41, 3, -7)):
        assert np.array_equal(drawn[part], whole[part])


def test_large_noise_is_not_in_memory(tmp_path):
    """At 224 pixels a set would take 1.5 GB; loading it and taking images of both parts takes a block of 20."""
    large = Input(width=224, height=224, resize="stretch", interpolation="bilinear")
    tracemalloc.start()
    loaded = load_ood("uniform", tmp_path, large)
    parts = loaded.calibration[:3], loaded.test[:40]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(part) for part in parts] == [3, 40]
    assert (len(loaded.calibration), len(loaded.test)) == (1_000, 9_000)
    assert peak < 30e6


def test_crop_and_resize_share_their_calibration_photos(tmp_path):
    """No photo that calibrates in one form is tested in the other, and together the parts are the whole set."""
    write_photos(tmp_path, "tinyimagenet_crop", kind=1)
    write_photos(tmp_path, "tinyimagenet_resize", kind=2)
    crop = load_ood("tinyimagenet_crop", tmp_path, TARGET, 10)
    resize = load_ood("tinyimagenet_resize", tmp_path, TARGET, 10)
    assert photos_of(crop.calibration) == photos_of(resize.calibration)
    assert len(crop.calibration) == 10
    assert photos_of(crop.calibration) | photos_of(crop.test) == set(range(40))
    assert photos_of(crop.calibration).isdisjoint(photos_of(resize.test))


def test_pairs_of_different_length_are_refused(tmp_path):
    """A crop set with fewer images than its resize set cannot be split by photo."""
    write_photos(tmp_path, "tinyimagenet_crop", images=30)
    write_photos(tmp_path, "tinyimagenet_resize")
    with pytest.raises(DataError, match="'tinyimagenet_crop' has 30 images and 'tinyimagenet_resize' 40"):
        load_ood("tinyimagenet_crop", tmp_path, TARGET, 10)


def test_all_images_takes_stand_ins(tmp_path):
    """The paper's sets are preferred; where one is absent its stand-in is used."""
    for name in ("tinyimagenet_crop", "tinyimagenet_resize", "lsun_bedroom_crop", "lsun_bedroom_resize", "isun"):
        write_photos(tmp_path, name)
    write_photos(tmp_path, "places_resize")
    together = load_ood("all_images", tmp_path, TARGET, 10)
    assert all_images_parts(tmp_path) == (
        *("tinyimagenet_crop", "tinyimagenet_resize", "lsun_bedroom_crop", "lsun_bedroom_resize", "isun"),
    )
    assert (len(together.calibration), len(together.test)) == (50, 150)
    (tmp_path / "lsun_bedroom_crop.npz").unlink()
    with pytest.raises(DataError, match="needs lsun_crop or lsun_bedroom_crop"):
        all_images_parts(tmp_path)


def test_parts_of_other_sizes_are_brought_to_the_bundles(tmp_path):
    """Where parts of All Images differ in size, each is scaled by the rule that scales images when it is served."""
    for name in ("tinyimagenet_crop", "tinyimagenet_resize", "lsun_crop", "lsun_resize"):
        write_photos(tmp_path, name)
    large = np.random.default_rng(0).integers(0, 256, (40, 9, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "isun.npz", x=large)
    rule = Input(width=4, height=4, resize="fit_crop", interpolation="bilinear", crop_fraction=0.8)
    together = load_ood("all_images", tmp_path, rule, 10)
    alone = load_ood("isun", tmp_path, rule, 10)
    assert np.array_equal(together.test[-30:], [fit_array(image, rule) for image in alone.test])


def test_half_of_a_small_set_is_for_calibration(tmp_path):
    """At most 1,000 images of a set set thresholds, and at most half of it; a set of fewer than 20 is refused."""
    write_photos(tmp_path, "mine", images=41)
    halves = load_ood("mine", tmp_path, TARGET)
    assert (len(halves.calibration), len(halves.test)) == (20, 21)
    assert photos_of(halves.calibration).isdisjoint(photos_of(halves.test))
    write_photos(tmp_path, "mine", images=19)
    with pytest.raises(DataError, match=r"'mine' has 19 different images, too few .* at least 20"):
        load_ood("mine", tmp_path, TARGET)
