"""Images that are kept decoded while a command runs."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.model.bundle import Input
from training.data.decoded import DecodedImages, keeping_decoded
from training.data.files import find_images
from training.data.folder import FolderImages, check_files

TARGET = Input(width=6, height=5, resize="stretch", interpolation="bilinear")
OTHER = TARGET.model_copy(update={"width": 7})
BYTES = 6 * 5 * 3


def image(value: int) -> np.ndarray:
    return np.full((5, 6, 3), value, np.uint8)


def test_an_image_comes_back_as_it_was():
    """By its path and size; another size of the same file is another image."""
    kept = DecodedImages()
    for value in range(3):
        kept.put(Path(f"{value}.png"), TARGET, image(value)[:, ::-1])  # in any memory layout
    assert [int(kept.get(Path(f"{value}.png"), TARGET).mean()) for value in range(3)] == [0, 1, 2]
    assert kept.get(Path("0.png"), OTHER) is None
    assert kept.get(Path("9.png"), TARGET) is None
    kept.get(Path("1.png"), TARGET)[:] = 77  # a copy
    assert int(kept.get(Path("1.png"), TARGET).mean()) == 1
    kept.close()
    assert kept.get(Path("0.png"), TARGET) is None


def test_no_more_is_kept_than_there_may_be():
    """What does not fit any more is not there; smaller images that fit still are."""
    kept = DecodedImages(most_bytes=2 * BYTES + 30)
    for value in range(4):
        kept.put(Path(f"{value}.png"), TARGET, image(value))
    assert [kept.get(Path(f"{value}.png"), TARGET) is not None for value in range(4)] == [True, True, False, False]
    kept.close()


def test_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch):
    """The images are decoded again instead."""
    kept = DecodedImages()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    kept.put(Path("0.png"), TARGET, image(0))
    assert kept.get(Path("0.png"), TARGET) is None
    kept.close()


def test_a_folder_is_decoded_again_after_the_command(tmp_path: Path):
    """Within it, what was seen when the folder was read is what every pass sees."""
    for value in range(3):
        Image.fromarray(image(50 * value)).save(tmp_path / f"{value}.png")
    with keeping_decoded():
        facts = check_files([(file, 0) for file in find_images(tmp_path).files], TARGET)
        images = FolderImages.of(facts, TARGET)
        chosen = images.select(np.array([1]))
        first = images[:]
        Image.fromarray(image(200)).save(tmp_path / "1.png")
        assert np.array_equal(images[:], first)
        assert int(chosen[:].mean()) == 50
    assert int(chosen[:].mean()) == 200


def test_a_process_that_is_not_forked_decodes_by_itself():
    """Pickled with the images of a folder, it arrives empty and keeps nothing: a file cannot be sent."""
    kept = DecodedImages()
    kept.put(Path("0.png"), TARGET, image(0))
    arrived = pickle.loads(pickle.dumps(kept))
    assert arrived.get(Path("0.png"), TARGET) is None
    arrived.put(Path("0.png"), TARGET, image(0))
    assert arrived.get(Path("0.png"), TARGET) is None
    assert np.array_equal(kept.get(Path("0.png"), TARGET), image(0))
    for one in (kept, arrived):
        one.close()
