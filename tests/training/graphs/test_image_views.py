"""Views of images that are decoded when they are used."""

import threading

import numpy as np
import pytest
from PIL import Image

from service.model.bundle import Input
from service.model.images import fit_array
from training.data.folder import FolderImages
from training.errors import DataError
from training.graphs.image_views import ChosenImages, as_served, batches_of

TARGET = Input(width=16, height=16, resize="stretch", interpolation="bilinear")
COUNT = 50


@pytest.fixture
def folder(tmp_path) -> FolderImages:
    paths = [tmp_path / f"{number}.png" for number in range(COUNT)]
    for number, path in enumerate(paths):
        Image.fromarray(np.full((16, 16, 3), number, np.uint8)).save(path)
    return FolderImages(paths, TARGET, np.zeros((COUNT, 2, 3)), np.zeros(COUNT, np.uint64))


@pytest.mark.parametrize("batch", [1, 7, 16, 49, 50, 51])
def test_batches_are_all_images_in_order(folder, batch):
    """Whatever the batch size: every image once, in order, and only the last batch may be smaller."""
    batches = list(batches_of(folder, batch))
    assert [len(pixels) for pixels in batches[:-1]] == [batch] * (len(batches) - 1)
    assert [int(image[0, 0, 0]) for pixels in batches for image in pixels] == list(range(COUNT))


def test_images_are_decoded_in_another_thread_and_only_a_batch_ahead(folder):
    """The caller's thread computes; what has been decoded meanwhile is the next batch, not the whole set."""
    asked = []

    class Watched:
        shape = folder.shape

        def __len__(self) -> int:
            return len(folder)

        def __getitem__(self, key):
            asked.append((key.start, threading.current_thread() is threading.main_thread()))
            return folder[key]

    next(batches_of(Watched(), 16))
    assert asked in ([(0, False)], [(0, False), (16, False)])


def test_an_image_that_vanished_is_named(folder):
    """An error of the thread that decodes reaches the caller."""
    folder.paths[20].unlink()
    with pytest.raises(DataError, match=r"20\.png"):
        list(batches_of(folder, 8))


def test_chosen_images_are_those_of_the_indices(folder):
    """In the order of the indices, sliced as arrays are."""
    chosen = ChosenImages(folder, np.array([30, 3, 12]))
    assert chosen.shape == (3, 16, 16, 3)
    assert chosen[:2][:, 0, 0, 0].tolist() == [30, 3]
    assert chosen[np.array([2, 0])][:, 0, 0, 0].tolist() == [12, 30]


def test_images_of_another_size_are_resized_by_the_code_that_serves():
    """Those of the right size are left as they are."""
    images = np.random.default_rng(0).integers(0, 256, (5, 20, 12, 3), dtype=np.uint8)
    served = as_served(images, TARGET)
    assert served.shape == (5, 16, 16, 3)
    np.testing.assert_array_equal(served[3:], [fit_array(image, TARGET) for image in images[3:]])
    right = images[:, :12]
    assert as_served(right, TARGET.model_copy(update={"width": 12, "height": 12})) is right
