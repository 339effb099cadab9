"""Files of a bundle that change under a service: it goes on with what it verified."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.running_service import ROOT, Service

SHIPPED = ROOT / "models" / "fashion_mnist" / "1"
IMAGE = (ROOT / "examples" / "cat.png").read_bytes()


def truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(100)


def overwritten(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def answer_of(service: Service) -> Any:
    answer = httpx.post(f"{service.url}/v1/predict?preprocess=true", content=IMAGE)
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"]


@pytest.mark.parametrize("spoil", [truncated, overwritten, Path.unlink])
def test_weights_that_change_under_a_served_model_change_no_answer(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """Truncated, overwritten in place or deleted: both graphs answer as before, and the process lives."""
    bundle = tmp_path / "models" / "fashion_mnist" / "1"
    shutil.copytree(SHIPPED, bundle)
    service = Service(tmp_path / "models").wait_until_serving()
    try:
        before = answer_of(service)
        spoil(bundle / "weights.bin")
        assert answer_of(service) == before
    finally:
        assert service.stop() == 0
