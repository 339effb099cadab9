"""The service under soak: its process, the errors in its log, and its memory over time."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

from benchmarks.serving.processes import pss_bytes

ROOT = Path(__file__).parents[2]
SAMPLE_SECONDS = 1.0


class WatchedService:
    """`confgate serve` in a process of its own. Only the errors of its log are kept."""

    def __init__(self, models: Path, body_seconds: float, *flags: str) -> None:
        command = [sys.executable, "-m", "service", "serve", "--models", str(models), "--port", "0", "--device", "cpu"]
        self.process = subprocess.Popen(
            [*command, "--body-timeout-ms", str(int(1000 * body_seconds)), *flags],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.models = sorted(folder.name for folder in models.iterdir() if folder.is_dir())
        self.port = 0
        self.log_lines = 0
        self.complaints: deque[str] = deque(maxlen=20)
        self.memory: list[tuple[float, int]] = []
        self._listening = threading.Event()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read_log), threading.Thread(target=self._sample)]

    def __enter__(self) -> "WatchedService":
        self._threads[0].start()
        if not self._listening.wait(300) or not self.port:
            self.process.kill()
            raise RuntimeError(f"the service did not start: {list(self.complaints)}")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def start_sampling(self) -> None:
        self._threads[1].start()

    def stop_sampling(self) -> None:
        self._stop.set()

    def stop(self) -> int:
        """Stops the service with SIGTERM, as an orchestrator does; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log_lines += 1
            if (found := re.search(r"running on http://[^ :]+:(\d+)", line)) is not None:
                self.port = int(found[1])
                self._listening.set()
            if _is_complaint(line):
                self.complaints.append(line.strip())
        self._listening.set()

    def _sample(self) -> None:
        started = time.monotonic()
        while not self._stop.wait(SAMPLE_SECONDS):
            with contextlib.suppress(OSError):
                self.memory.append((time.monotonic() - started, pss_bytes(self.process.pid)))


def _is_complaint(line: str) -> bool:
    """Whether a line of the log is an error, or not JSON as it should be."""
    try:
        return json.loads(line)["level"] in ("error", "critical")
    except (ValueError, KeyError, TypeError):
        return True


def window_floors(memory: list[tuple[float, int]], seconds: float) -> tuple[float, float] | None:
    """The lower quartile of the memory in the first and in the last `seconds`; None if the two overlap.

    What large images take while they are decoded comes and goes, and is bounded by a budget. A leak raises the floor.
    """
    if not memory or memory[-1][0] < 2 * seconds:
        return None
    end = memory[-1][0]
    first = sorted(size for at, size in memory if at <= seconds)
    last = sorted(size for at, size in memory if at >= end - seconds)
    return first[len(first) // 4], last[len(last) // 4]
