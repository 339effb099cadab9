from pathlib import Path

import pytest

from tests.training.command_line import write_folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/{blue,green,red}/*.png and *.jpg: 60 images whose class is their brightest channel."""
    return write_folder(tmp_path_factory.mktemp("foreign") / "photos")
