"""A real server process, started as a user starts it, that tests reach over HTTP."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


class Service:
    """`confgate serve` as a process of its own, and the lines of its log. Its metrics are never out of date."""

    FLAGS = ("--port", "0", "--metrics-cache-ms", "0")

    def __init__(self, models: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*(sys.executable, "-m", "service", "serve"), *self.FLAGS, "--models", str(models), *flags],
            cwd=ROOT,
            env={**os.environ, "CONFGATE_DEVICE": "cpu", **(env or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self.url = ""
        self._serving = threading.Event()
        self._another_line = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._another_line:
                self.lines.append(line)
                self._another_line.notify_all()
            if (found := re.search(r"running on (http://[^ ]+)", line)) is not None:
                self.url = found[1]
                self._serving.set()
        self._serving.set()

    def wait_until_serving(self) -> "Service":
        assert self._serving.wait(60)
        assert self.url, "".join(self.lines)
        return self

    def wait_until_refused(self) -> str:
        """What a service that does not start says on its way out."""
        assert self._ended() != 0
        return "".join(self.lines)

    def wait_for_line(self, words: str) -> None:
        with self._another_line:
            assert self._another_line.wait_for(lambda: any(words in line for line in self.lines), 60)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.lines)]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to end, and waits until all it said has been read."""
        self.process.send_signal(how)
        return self._ended()

    def wait_until_ended(self) -> int:
        return self._ended()

    def _ended(self) -> int:
        code = self.process.wait(60)
        self._reader.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code
