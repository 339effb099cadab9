"""/metrics: many scrapes cost about as much as one, and none of them holds the event loop."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import Metric
from prometheus_client.registry import Collector

from tests.conftest import RED
from tests.service.conftest import HeldService

SCRAPES = 20


class HeldCollector(Collector):
    """A metric whose collection a test can hold up."""

    def __init__(self) -> None:
        self.collected = 0
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        self.collected += 1
        self.entered.release()
        assert self.go_on.wait(60)
        return iter(())


def count_of(text: str) -> float:
    """How many requests the service has answered well, as a scrape says it."""
    (line,) = (line for line in text.splitlines() if line.startswith("confgate_requests_total") and is_asked_for(line))
    return float(line.split()[-1])


def is_asked_for(line: str) -> bool:
    return all(words in line for words in ('model="colours"', 'outcome="ok"', 'route="/v1/predict"'))


@pytest.mark.parametrize("held_service", [{"metrics_cache_ms": 60_000}], indirect=True)
def test_scrapes_that_wait_share_one_text(held_service: HeldService) -> None:
    """While one scrape is written the others wait for it, and health is answered all the time."""
    collector = HeldCollector()
    held_service.app.state.metrics.registry.register(collector)
    with ThreadPoolExecutor(SCRAPES) as threads:
        scrapes = [threads.submit(held_service.client.get, "/metrics") for _ in range(SCRAPES)]
        try:
            assert collector.entered.acquire(timeout=60)
            assert held_service.client.get("/v2/health/live").status_code == 200
        finally:
            collector.go_on.set()
        (text,) = {scrape.result(60).text for scrape in scrapes}
    assert count_of(text) == 0
    assert collector.collected == 1


@pytest.mark.parametrize("held_service", [{"metrics_cache_ms": 60_000}], indirect=True)
def test_a_scrape_is_kept_for_as_long_as_is_set(held_service: HeldService) -> None:
    """Within metrics_cache_ms the same text is sent again, whatever has happened since."""
    before = held_service.client.get("/metrics").text
    assert held_service.client.post("/v1/predict", content=RED).status_code == 200
    assert held_service.client.get("/metrics").text == before


@pytest.mark.parametrize("held_service", [{"metrics_cache_ms": 0}], indirect=True)
def test_a_scrape_can_always_be_new(held_service: HeldService) -> None:
    """With metrics_cache_ms 0 a scrape has all that was answered before it."""
    for answered in range(3):
        assert count_of(held_service.client.get("/metrics").text) == answered
        assert held_service.client.post("/v1/predict", content=RED).status_code == 200
