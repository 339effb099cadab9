"""How a model shares the CPUs: chosen by how long it computes, or as set; told by the API, the metrics and the log."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.cpus import usable_cpus
from service.model.bundle import Bundle, GraphName, load_bundle
from service.model.images import Pixels
from service.model.scores import Outputs
from service.model.session import ActiveDevice, Device, OnnxSession, open_session
from service.serving.metrics import Metrics
from service.serving.opening import BundleOpener, OpenedBundle
from service.serving.parallelism import ByLoad, Parallelism, parallelism_for
from service.settings import Settings
from tests.conftest import BLUE, GREEN, RED, make_bundle
from tests.running_service import Service

TINY, SMALL, PHOTO, LARGE = 0.0001, 0.0013, 0.009, 0.2  # seconds for one image on one thread
RUN_SECONDS = 0.004


@pytest.mark.parametrize(
    ("seconds", "cpus", "expected"),
    [
        *((TINY, cpus, Parallelism(1, 1, 32)) for cpus in (1, 2, 4, 16)),
        (SMALL, 1, Parallelism(1, 1, 15)),
        (SMALL, 2, Parallelism(2, 2, 15)),
        (SMALL, 4, Parallelism(2, 3, 15)),
        (SMALL, 16, Parallelism(2, 3, 15)),
        (PHOTO, 1, Parallelism(1, 1, 2)),
        (PHOTO, 2, Parallelism(2, 2, 2)),
        (PHOTO, 4, Parallelism(4, 4, 2)),
        (PHOTO, 16, Parallelism(8, 16, 2)),
        (LARGE, 16, Parallelism(8, 16, 1)),
    ],
)
def test_what_is_chosen_follows_from_the_network_and_the_cpus(seconds: float, cpus: int, expected: Parallelism) -> None:
    """A fast network gets one worker and one thread on any machine; a slow one gets every CPU, and small batches."""
    assert parallelism_for(seconds, cpus, max_batch=32) == expected


class SlowSession:
    """A real session whose every run takes a while, on the device that a test says."""

    def __init__(self, session: OnnxSession, device: ActiveDevice) -> None:
        self._session, self.device, self.providers = session, device, session.providers
        self.largest_batch = session.largest_batch

    def run(self, images: Pixels) -> Outputs:
        time.sleep(RUN_SECONDS)
        return self._session.run(images)


def opened(
    folder: Path, device: ActiveDevice, **settings: int
) -> tuple[OpenedBundle, list[tuple[GraphName, int, int]]]:
    """A bundle as it is opened with these settings; and graph, threads and largest batch of each session."""
    asked: list[tuple[GraphName, int, int]] = []

    def open_slow(
        bundle: Bundle, graph: GraphName, wanted: Device, threads: int, max_batch: int, batch_bytes: int
    ) -> SlowSession:
        asked.append((graph, threads, max_batch))
        return SlowSession(open_session(bundle, graph, wanted, threads, max_batch, batch_bytes), device)

    opener = BundleOpener(Settings(device="cpu", **settings), Metrics(), open_session=open_slow)
    bundle = opener.open(folder, {})
    assert bundle is not None
    return bundle, asked


@pytest.fixture
def four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.serving.opening.usable_cpus", lambda: 4)


@pytest.mark.usefixtures("four_cpus")
def test_a_slow_network_is_measured_and_gets_all_cpus(models: Path) -> None:
    """The graph is run once on one thread; then both graphs are opened as was chosen."""
    bundle, asked = opened(make_bundle(models).folder, "cpu")
    chosen = bundle.parallelism
    assert (chosen.threads, chosen.workers) == (4, 4)
    assert 1 <= chosen.largest_batch <= 5  # of what takes at least 4 ms
    assert asked == [("forward", 1, 1), ("perturbed", 4, chosen.largest_batch), ("forward", 4, chosen.largest_batch)]


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"threads": 3, "max_batch": 7}, Parallelism(threads=3, workers=1, largest_batch=7)),
        ({"threads": 1, "inference_workers": 6}, Parallelism(threads=1, workers=6, largest_batch=32)),
    ],
)
def test_threads_that_are_set_are_used(models: Path, settings: dict[str, int], expected: Parallelism) -> None:
    """With `threads` nothing is measured: one worker unless that is set too, and batches as large as set."""
    bundle, asked = opened(make_bundle(models).folder, "cpu", **settings)
    assert bundle.parallelism == expected
    assert asked == [(graph, expected.threads, expected.largest_batch) for graph in ("perturbed", "forward")]


@pytest.mark.usefixtures("four_cpus")
def test_workers_can_be_set_alone(models: Path) -> None:
    """`inference_workers` leaves the number of threads to the measurement."""
    bundle, _ = opened(make_bundle(models).folder, "cpu", inference_workers=2)
    assert (bundle.parallelism.threads, bundle.parallelism.workers) == (4, 2)


def test_a_gpu_has_one_worker_and_large_batches(models: Path) -> None:
    """However long a network takes on a GPU, batches run one after the other, and are as large as set."""
    bundle, _ = opened(make_bundle(models).folder, "cuda")
    assert (bundle.parallelism.workers, bundle.parallelism.largest_batch) == (1, 32)
    bundle, _ = opened(models / "colours" / "1", "cuda", inference_workers=2)
    assert bundle.parallelism.workers == 2  # what is set is used there too


def test_what_was_chosen_is_told(models: Path) -> None:
    """/v1/models, the metrics and the log agree on threads, workers and the largest batch, and on decoding threads."""
    make_bundle(models)
    service = Service(models, "--inference-workers", "3", "--decode-threads", "2").wait_until_serving()
    try:
        with httpx.Client(base_url=service.url, timeout=60) as client:
            version = client.get("/v1/models").json()["models"][0]["versions"][0]
            metrics = client.get("/metrics").text
        told, largest = version["parallelism"], version["sessions"]["forward"]["largest_batch"]
        assert told["workers"] == 3
        (line,) = [line for line in service.log() if line["message"] == "model loaded"]
        assert {name: line[name] for name in told} == told
        assert line["largest_batch"]["forward"] == largest
        of_model = '{model="colours",version="1"}'
        assert f"confgate_inference_threads{of_model} {told['threads']:.1f}" in metrics
        assert f"confgate_inference_workers{of_model} 3.0" in metrics
        assert f"confgate_largest_batch_images{of_model} {largest:.1f}" in metrics
        (line,) = [line for line in service.log() if line["message"] == "starting"]
        assert (line["usable_cpus"], line["decode_threads"]) == (usable_cpus(), 2)
        assert f"confgate_usable_cpus {usable_cpus():.1f}" in metrics
        assert "confgate_decode_threads 2.0" in metrics
    finally:
        service.stop()


class Held:
    """A session that tells when it runs, and waits."""

    device: ActiveDevice = "cpu"
    providers = ("CPUExecutionProvider",)
    largest_batch = 1

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def run(self, images: Pixels) -> Outputs:
        self.entered.release()
        assert self.go_on.acquire(timeout=30)
        if images.any():
            raise RuntimeError("out of memory")
        return {}


def test_only_a_batch_alone_uses_many_threads() -> None:
    """What runs beside another batch gets one thread; the next one that is alone, also after a failure, gets many."""
    many, one, black = Held(), Held(), np.zeros((1, 8, 8, 3), np.uint8)
    session = ByLoad(many, one)
    with ThreadPoolExecutor(3) as pool:
        failing = pool.submit(session.run, black + 1)
        assert many.entered.acquire(timeout=30)
        beside = [pool.submit(session.run, black) for _ in range(2)]
        assert all(one.entered.acquire(timeout=30) for _ in beside)
        many.go_on.release()
        with pytest.raises(RuntimeError, match="out of memory"):
            failing.result(30)
        one.go_on.release(2)
        assert [run.result(30) for run in beside] == [{}, {}]
        many.go_on.release()
        assert pool.submit(session.run, black).result(30) == {}


def test_answers_do_not_depend_on_threads_and_workers(models: Path) -> None:
    """Many requests at once, with three workers of two threads, are answered with the bits of a session alone."""
    make_bundle(models)
    folder = load_bundle(models / "colours" / "1")
    service = Service(models, "--threads", "2", "--inference-workers", "3", "--max-batch", "2").wait_until_serving()
    try:
        ask: Callable[[bytes], httpx.Response] = lambda png: httpx.post(f"{service.url}/v1/predict", content=png)  # noqa: E731
        with ThreadPoolExecutor(12) as senders:
            answers = list(senders.map(ask, [RED, GREEN, BLUE] * 40))
        alone = {png: ask(png).json()["predictions"] for png in (RED, GREEN, BLUE)}
        assert [answer.json()["predictions"] for answer in answers] == [alone[png] for png in (RED, GREEN, BLUE)] * 40
    finally:
        service.stop()
    images = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
    of_one, of_four = (open_session(folder, "perturbed", "cpu", threads).run(images) for threads in (1, 4))
    for name, rows in of_one.items():
        np.testing.assert_array_equal(rows, of_four[name])
