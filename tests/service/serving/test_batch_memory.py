"""On a CPU the largest batch follows from the memory that images take in the graph."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.model.bundle import load_bundle
from service.model.session import open_session
from tests.conftest import make_bundle, solid
from tests.running_service import Service

SIDE = 640  # one tensor of such an image takes 5 MB


@pytest.mark.parametrize(
    ("side", "megabytes", "fits"), [(SIDE, 1, {1}), (SIDE, 40, {2, 4}), (SIDE, 4000, {32}), (8, 1, {32})]
)
def test_the_largest_batch_fits_the_memory(models: Path, side: int, megabytes: int, fits: set[int]) -> None:
    """Large images are computed a few at a time, and one at a time where even one takes more than is allowed."""
    bundle = load_bundle(make_bundle(models, side=side).folder)
    session = open_session(bundle, "forward", "cpu", 1, 32, megabytes * 1_000_000)
    assert session.largest_batch in fits
    outputs = session.run(np.zeros((5, side, side, 3), np.uint8))
    assert outputs["logits"].shape == (5, 3)


def test_a_service_computes_no_larger_batch(models: Path) -> None:
    """With batch_mb 1 every batch of large images holds one, and requests with many images are answered as ever."""
    make_bundle(models, side=SIDE)
    service = Service(models, "--batch-mb", "1").wait_until_serving()
    try:
        red, blue = (solid(colour, (SIDE, SIDE)) for colour in ((255, 0, 0), (0, 0, 255)))
        with httpx.Client(base_url=service.url, timeout=60) as client, ThreadPoolExecutor(4) as threads:
            alone = [threads.submit(httpx.post, f"{service.url}/v1/predict", content=red, timeout=60) for _ in range(4)]
            files = [("file", (str(k), io.BytesIO((red, blue)[k % 2]))) for k in range(6)]
            labels = [row["label"] for row in client.post("/v1/predict", files=files).json()["predictions"]]
            assert labels == ["red", "blue"] * 3
            assert all(one.result().status_code == 200 for one in alone)
            shown = client.get("/v1/models").json()["models"][0]["versions"][0]["sessions"]
            metrics = client.get("/metrics").text
        assert shown["forward"] == {"largest_batch": 1, "open": True}
        assert shown["perturbed"] == {"largest_batch": 1, "open": False}
        told = next(line for line in service.log() if line["message"] == "model loaded")
        assert (told["largest_batch"], told["open"]) == ({"forward": 1, "perturbed": 1}, ["forward"])
        counted = {
            line.split("{")[0]: float(line.rsplit(" ", 1)[1])
            for line in metrics.splitlines()
            if line.startswith("confgate_batch_size_") and 'graph="forward"' in line
        }
        assert counted["confgate_batch_size_sum"] == counted["confgate_batch_size_count"] == 10
    finally:
        service.stop()
