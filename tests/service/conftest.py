"""A service in this process whose model a test can hold up or make fail, reached over real HTTP."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.model.bundle import Bundle, GraphName
from service.model.images import Pixels
from service.model.scores import Outputs
from service.model.session import ActiveDevice, Device, OnnxSession, open_session
from service.serving.served_model import Model
from service.settings import Settings
from service.web.app import create_app
from service.web.server import DrainingServer
from tests.conftest import OPERATOR_LINE, make_bundle


class HeldSession:
    """A real session that waits for `go_on` before each batch, and fails on images of `poison` brightness."""

    def __init__(self, session: OnnxSession) -> None:
        self._session = session
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()
        self.batches: list[int] = []
        self.threads: list[str] = []  # which thread ran each
        self.poison: int | None = None

    @property
    def device(self) -> ActiveDevice:
        return self._session.device

    @property
    def providers(self) -> Sequence[str]:
        return self._session.providers

    @property
    def largest_batch(self) -> int:
        return self._session.largest_batch

    def run(self, images: Pixels) -> Outputs:
        self.batches.append(len(images))
        self.threads.append(threading.current_thread().name)
        self.entered.release()
        assert self.go_on.wait(60)
        if self.poison is not None and (images[:, 0, 0, 0] == self.poison).any():
            raise RuntimeError("out of memory")
        return self._session.run(images)

    def wait_until_entered(self) -> None:
        assert self.entered.acquire(timeout=60)


class ThreadedServer(DrainingServer):
    """The real server in a thread, with an event for the moment it listens."""

    def __init__(self, app: Any, settings: Settings) -> None:
        super().__init__(app, settings)
        self.listening = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class HeldService:
    def __init__(self, models: Path, **settings: Any) -> None:
        self.session: HeldSession | None = None
        # One worker, on every machine: a test that holds it up sees what waits behind it.
        usual = {"port": 0, "access_log": False, "api_keys": OPERATOR_LINE, "threads": 1}
        patient = {"request_timeout_ms": 60_000, "metrics_cache_ms": 0}
        self.settings = Settings(models=models, device="cpu", **{**usual, **patient, **settings})
        self.app = create_app(self.settings, self._open_session)
        self.server = ThreadedServer(self.app, self.settings)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        assert self.server.listening.wait(60)
        self.port: int = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        # Room for every thread of a test; no certificates, which take longer to load than all else.
        self.client = httpx.Client(
            base_url=self.url, timeout=60, verify=False, trust_env=False, limits=httpx.Limits(max_connections=64)
        )

    def _open_session(
        self, bundle: Bundle, graph: GraphName, device: Device, threads: int, max_batch: int, batch_bytes: int
    ) -> HeldSession:
        session = HeldSession(open_session(bundle, graph, device, threads, max_batch, batch_bytes))
        if graph == "forward":
            self.session = session
        return session

    @property
    def held(self) -> HeldSession:
        assert self.session is not None
        return self.session

    @property
    def model(self) -> Model:
        model: Model = self.app.state.registry.get(None, None)
        return model

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the series of `colours` 1 that have these labels."""
        wanted = {"model": "colours", "version": "1", **labels}.items()
        samples = (sample for family in self.app.state.metrics.registry.collect() for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name == name and wanted <= sample.labels.items())

    def stop(self) -> None:
        self.held.go_on.set()
        self.client.close()
        self.server.should_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def held_service(models: Path, request: pytest.FixtureRequest) -> Iterator[HeldService]:
    """A service with `colours` 1; settings come from `@pytest.mark.parametrize(..., indirect=True)`."""
    make_bundle(models)
    service = HeldService(models, **getattr(request, "param", {}))
    yield service
    service.stop()
