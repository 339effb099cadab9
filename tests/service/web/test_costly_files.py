"""No file may cost more than its share: limits from the header, workers that can be stopped, budgets of bytes."""

import base64
import json
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from benchmarks.attacks.files import encoded
from service.serving.budgets import SMALL_BODY
from tests.conftest import RED, Service, make_bundle
from tests.costly_files import (
    large_metadata,
    many_chunks,
    many_frames,
    many_scans,
    many_segments,
    many_strips,
    slow_png,
    wide_webp,
)
from tests.service.conftest import HeldService
from tests.service.serving.test_load import wait_for


def predict(client: httpx.Client, body: bytes, **query: Any) -> httpx.Response:
    return client.post("/v1/predict", content=body, params=query, headers={"Content-Type": "image/png"})


def client_of(folder: Path, *flags: str) -> Iterator[httpx.Client]:
    make_bundle(folder / "models")
    yield from serving(folder / "models", *flags)


def serving(models: Path, *flags: str) -> Generator[httpx.Client]:
    service = Service(models, *flags).wait_until_serving()
    try:
        with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as client:
            yield client
    finally:
        service.stop()


@pytest.fixture(scope="module")
def as_shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from client_of(tmp_path_factory.mktemp("shipped"))


@pytest.fixture(scope="module")
def any_format(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    yield from client_of(tmp_path_factory.mktemp("formats"), "--formats", "png,tiff,bmp")


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (many_scans(), "pixels times scans; at most 400000000"),
        (many_chunks(), "parts (chunks, segments, blocks, strips or tiles); at most 20000"),
        (many_segments(), "parts (chunks, segments, blocks, strips or tiles); at most 20000"),
        (many_frames(), "100000 frames; at most 1000"),
        (large_metadata(), "bytes of ICC profile, EXIF and text; at most 2000000"),
    ],
    ids=["scans", "chunks", "segments", "frames", "metadata"],
)
def test_a_file_that_would_cost_too_much_is_413_with_the_limit(
    as_shipped: httpx.Client, file: bytes, says: str
) -> None:
    """The header tells what decoding would cost, and a file over a limit is refused before it is decoded."""
    answer = predict(as_shipped, file)
    assert answer.status_code == 413, answer.text
    assert says in answer.json()["detail"]
    assert predict(as_shipped, RED).json()["predictions"][0]["label"] == "red"


def test_a_jpeg_is_limited_by_the_memory_of_the_scale_it_is_decoded_at(tmp_path: Path) -> None:
    """A photo that fits at a reduced scale is answered; one that wants it whole says what that takes."""
    make_bundle(tmp_path / "models", "reduced")
    make_bundle(tmp_path / "models", "whole", change=lambda raw: raw["input"].update(decode_margin="full"))
    photo = encoded(Image.new("RGB", (4000, 3000), (200, 20, 20)), "JPEG")
    with closing(serving(tmp_path / "models", "--decoding-mb", "64")) as clients:
        client = next(clients)
        reduced, whole = (predict(client, photo, model=model) for model in ("reduced", "whole"))
        smaller = predict(client, encoded(Image.new("RGB", (2000, 1500)), "JPEG"), model="whole")
        shown = [model["versions"][0]["input"]["decode_margin"] for model in client.get("/v1/models").json()["models"]]
    assert reduced.json()["predictions"][0]["label"] == "red"
    assert (whole.status_code, smaller.status_code) == (413, 200)
    assert "decoding the image takes about 96 MB of memory; 64 MB are allowed" in whole.json()["detail"]
    assert shown == [2.0, "full"]


@pytest.mark.parametrize("kind", ["TIFF", "BMP"])
def test_a_format_is_accepted_only_where_it_is_on(
    as_shipped: httpx.Client, any_format: httpx.Client, kind: str
) -> None:
    """TIFF and BMP are 415 by default; with the setting `formats` they are answered, and others are 415."""
    file = encoded(Image.new("RGB", (8, 8), (255, 0, 0)), kind)
    refused = predict(as_shipped, file)
    assert refused.status_code == 415
    assert f"{kind} images are not accepted here: send PNG, JPEG, WEBP, GIF" in refused.json()["detail"]
    assert predict(any_format, file).json()["predictions"][0]["label"] == "red"
    assert predict(any_format, encoded(Image.new("RGB", (8, 8)), "JPEG")).status_code == 415


def test_a_tiff_of_a_million_strips_is_413(any_format: httpx.Client) -> None:
    """Also where TIFF is on: each strip would be walked in Python."""
    answer = predict(any_format, many_strips())
    assert answer.status_code == 413
    assert "parts (chunks, segments, blocks, strips or tiles); at most 20000" in answer.json()["detail"]


def test_a_large_image_delays_no_small_one(held_service: HeldService) -> None:
    """While a worker decodes 40 megapixels, a small image that arrived later is answered first."""
    order: list[str] = []

    def send(name: str, body: bytes) -> int:
        with httpx.Client(base_url=held_service.url, timeout=60, trust_env=False) as client:
            status = predict(client, body).status_code
        order.append(name)
        return status

    with ThreadPoolExecutor(2) as pool:
        large = pool.submit(send, "large", wide_webp())
        wait_for(lambda: held_service.app.state.lifecycle.in_flight == 1)
        assert pool.submit(send, "small", RED).result() == 200
        assert large.result() == 200
    assert order == ["small", "large"]


@pytest.mark.parametrize("held_service", [{"request_timeout_ms": 300, "decode_workers": 1}], indirect=True)
def test_decoding_ends_with_its_request(held_service: HeldService) -> None:
    """An image that cannot be decoded by its deadline is refused at once, and none goes on after its answer."""
    statuses = {predict(held_service.client, wide_webp()).status_code for _ in range(3)}
    assert statuses <= {429, 504}
    assert predict(held_service.client, RED).status_code == 200


@pytest.mark.parametrize("held_service", [{"decode_cpu_seconds": 1, "decode_workers": 1}], indirect=True)
def test_a_worker_that_exceeds_its_cpu_time_is_replaced(
    held_service: HeldService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding that takes more CPU time than any header foretold is stopped with 413, and the next image is decoded."""
    endless = many_scans(3000, 2000)
    monkeypatch.setattr("service.serving.predictor.check_header", lambda *_: None)  # as if nothing had foretold it
    monkeypatch.setattr("service.model.headers.NANOSECONDS_A_SCAN", 0.01)
    answer = predict(held_service.client, endless)
    assert answer.status_code == 413, answer.text
    assert "more than 1 s of CPU time" in answer.json()["detail"]
    assert predict(held_service.client, slow_png()).status_code == 200


@pytest.mark.parametrize("held_service", [{"decoding_mb": 64}], indirect=True)
def test_an_image_over_the_decoding_budget_is_413(held_service: HeldService) -> None:
    """An image that would take more memory than all large images together may is refused with both figures."""
    answer = predict(held_service.client, wide_webp())
    assert answer.status_code == 413
    assert "takes about 719 MB of memory; 64 MB are allowed (the setting `decoding_mb`)" in answer.json()["detail"]
    assert predict(held_service.client, RED).status_code == 200


@pytest.mark.parametrize("held_service", [{"bodies_mb": 4, "max_images": 4}], indirect=True)
def test_bodies_in_flight_have_a_budget(held_service: HeldService) -> None:
    """Large bodies beyond the budget get 429 with Retry-After; small ones are answered all the same."""
    large = RED + bytes(3_000_000)
    held_service.held.go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(predict, held_service.client, large)
        held_service.held.wait_until_entered()
        shed = httpx.post(f"{held_service.url}/v1/predict", content=large, trust_env=False, timeout=60)
        assert shed.status_code == 429
        assert shed.json()["type"] == "urn:confgate:problem:memory-budget"
        assert int(shed.headers["Retry-After"]) >= 1
        small = pool.submit(predict, held_service.client, RED + bytes(SMALL_BODY // 2))
        held_service.held.go_on.set()
        assert (first.result().status_code, small.result().status_code) == (200, 200)
    assert predict(held_service.client, large).status_code == 200  # what was held has been given back


def test_many_large_images_in_one_request_are_not_all_decoded(held_service: HeldService) -> None:
    """64 images of 40 megapixels in a small JSON body are refused at once, and a small image is answered."""
    body = json.dumps({"images": [base64.b64encode(wide_webp()).decode()] * 64}).encode()
    json_type = {"Content-Type": "application/json", "X-Request-Timeout-Ms": "5000"}
    answer = held_service.client.post("/v1/predict", content=body, headers=json_type)
    assert answer.status_code == 429, answer.text
    assert "until after its deadline" in answer.json()["detail"]
    assert predict(held_service.client, RED).status_code == 200


def test_workers_end_with_the_service(models: Path) -> None:
    """After SIGTERM no worker process is left."""
    make_bundle(models)
    service = Service(models).wait_until_serving()
    try:
        answer = httpx.post(f"{service.url}/v1/predict", content=slow_png(), trust_env=False, timeout=60)
        workers = _descendants(service.process.pid)
    finally:
        ended = service.stop()
    assert (answer.status_code, ended) == (200, 0)
    assert len(workers) >= 2  # the process that forks, and one that decodes
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def _descendants(pid: int) -> list[int]:
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return children + [below for child in children for below in _descendants(child)]


def test_the_event_loop_never_decodes_what_takes_long(held_service: HeldService) -> None:
    """After a row of requests over one connection, a small file that is slow to decode goes through the threads."""
    for _ in range(40):
        assert predict(held_service.client, RED).status_code == 200
    slow = many_scans(90, 2000)
    assert len(slow) < 65_536
    assert predict(held_service.client, slow).status_code == 200
    assert held_service.held.threads[-1].startswith("colours")
