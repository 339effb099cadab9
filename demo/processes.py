"""The service and Prometheus as processes of their own, on free ports, with their logs in files."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from demo.errors import DemoError
from demo.faster_rules import ONE_SCORE_ALERT, PAIR_ALERTS
from demo.web import get_json
from service.serving.score_metrics import PAIR, reasons_of

ROOT = Path(__file__).parent.parent
START_TIMEOUT_SECONDS = 120
LOG_LINES_SHOWN = 3


class Child:
    """A program in the background that ends with its `with` block."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: dict[str, str] | None = None) -> None:
        self.name, self.log = name, log
        with log.open("w") as file:
            # A session of its own: Ctrl-C goes to the demonstration, which then ends its children in order.
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait_for(self, pattern: str) -> str:
        """Waits until the log matches a pattern; returns the first group."""
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            ended = self._process.poll() is not None
            if (found := re.search(pattern, self._said())) is not None:
                return found[1]
            if ended:
                raise DemoError(f"{self.name} did not start. {self._last_words()}")
            time.sleep(0.1)
        raise DemoError(f"{self.name} was not ready after {START_TIMEOUT_SECONDS} seconds. {self._last_words()}")

    def check(self) -> None:
        """Raises if the program has ended by itself."""
        if (code := self._process.poll()) is not None:
            raise DemoError(f"{self.name} ended during the run (exit code {code}). {self._last_words()}")

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _last_words(self) -> str:
        lines = self._said().splitlines()
        if taken := [line for line in lines if "address already in use" in line.lower()]:
            return f"Its port is taken: choose another one, or 0 for any free one.\n{taken[-1]}"
        return "\n".join([f"The end of {self.log}:", *lines[-LOG_LINES_SHOWN:]])


@dataclass(frozen=True)
class Watched:
    """A reason for which the gate refuses images, the share that calibration expects of it, and its alert."""

    reason: str
    expected: float
    alert: str


@dataclass(frozen=True)
class Gate:
    """The model that answers and the policy that decides, as /v1/models describes them."""

    model: str
    version: int
    score: str  # "pair" for a pair of thresholds, as in Prometheus
    policy: str
    expected_rejection_rate: float
    calibration_images: int
    labels: tuple[str, ...]
    evaluation: tuple[dict[str, Any], ...]
    watched: tuple[Watched, ...]

    @property
    def alerts(self) -> tuple[str, ...]:
        """The alerts on what this gate refuses."""
        return tuple(watched.alert for watched in self.watched)

    @property
    def compared(self) -> str:
        """What the thresholds are on."""
        return "typicality and certainty" if self.score == PAIR else self.score

    def figure(self, metric: str, policy: str | None = None) -> dict[str, Any] | None:
        """A figure from the bundle's evaluation on the model's own test images."""
        return next(
            (row for row in self.evaluation if row["metric"] == metric and row.get("policy") == policy
             and row.get("score") in (None, self.score) and row["data"] == f"{self.model} test"),
            None,
        )  # fmt: skip


def start_service(models: Path, model: str, port: int, log: Path) -> Child:
    command = [sys.executable, "-m", "service", "serve", "--models", str(models.resolve()), "--default-model", model]
    # On the CPU, so that no alert about a missing GPU fires beside the one to be shown.
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--no-access-log"]
    # Prometheus scrapes every second here, and should see something new each time.
    command += ["--metrics-cache-ms", "0"]
    # Settings in the environment are meant for another service.
    env = {name: value for name, value in os.environ.items() if not name.startswith("CONFGATE_")}
    return Child("the service", command, log, env)


def start_prometheus(program: str, config: Path, log: Path) -> Child:
    folder = config.parent / "data"
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder}"]
    return Child("Prometheus", [*command, "--web.listen-address=127.0.0.1:0"], log)


def address_of(service: Child) -> str:
    """http://127.0.0.1:PORT, once the service is up."""
    return service.wait_for(r"running on (http://[0-9.:]+)")


def prometheus_address_of(prometheus: Child) -> str:
    # The first line with an address still has the requested port, 0.
    address = prometheus.wait_for(r"Listening on\D+?address=(127\.0\.0\.1:[1-9]\d*)")
    prometheus.wait_for(r"(Server is ready to receive web requests)")
    return f"http://{address}"


def gate_of(url: str, model: str) -> Gate:
    """The default version of a model, and its default policy."""
    entry = next(entry for entry in get_json(f"{url}/v1/models")["models"] if entry["name"] == model)
    version = next(v for v in entry["versions"] if v["version"] == entry["default_version"])
    score, policy = version["default"]["score"] or PAIR, version["default"]["policy"]
    chosen = version["pairs"]["policies"][policy] if score == PAIR else version["scores"][score]["policies"][policy]
    if score == PAIR:
        expected = {reason: chosen["expected"][reason]["rate"] for reason in ("unfamiliar", "unsure", "total")}
        alerts = PAIR_ALERTS
    else:
        expected = dict.fromkeys(("unfamiliar", "unsure", "total"), chosen["expected_rejection_rate"])
        alerts = dict.fromkeys(PAIR_ALERTS, ONE_SCORE_ALERT)
    return Gate(
        model,
        version["version"],
        score,
        policy,
        expected["total"],
        chosen["n"],
        tuple(version["labels"]),
        tuple(version["evaluation"]),
        tuple(Watched(reason, expected[reason], alerts[reason]) for reason in reasons_of(score)),
    )
