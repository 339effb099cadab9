"""Logs as one JSON object per line. Images never get here: only ids, names, decisions and timings do."""

import logging
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TextIO

from pydantic_core import to_json

log = logging.getLogger("confgate")

GATHER_SECONDS = 0.02
# What every LogRecord has; anything else was given as `extra` and belongs in the line.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return line_of(record.created, record.levelname.lower(), record.getMessage(), fields)


def line_of(created: float, level: str, message: str, fields: Mapping[str, object]) -> str:
    whole = int(created)
    time = f"{_second(whole)}.{int((created - whole) * 1000):03}+00:00"
    return to_json({"time": time, "level": level, "message": message, **fields}, serialize_unknown=True).decode()


@lru_cache(maxsize=1)
def _second(whole: int) -> str:
    """Cached, because many lines share a second and formatting it takes as long as the rest of a line."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class GatheringHandler(logging.Handler):
    """Gathers lines and writes them a few times a second from its own thread; warnings and worse at once.

    A write releases the GIL, and the writing thread then waits to get it back. One write for each request would make
    the event loop wait as often, so many lines share one.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        # A deque, because any thread may add while another writes: each line is taken once, and none is lost.
        self._lines: deque[str] = deque()
        self._some = threading.Event()
        threading.Thread(target=self._write_for_ever, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        self.add(self.format(record))
        if record.levelno >= logging.WARNING:
            self.flush()

    def add(self, line: str) -> None:
        self._lines.append(line + "\n")
        if not self._some.is_set():
            self._some.set()

    def flush(self) -> None:
        """Also called by `logging` when the process ends."""
        self.acquire()
        try:
            if lines := [self._lines.popleft() for _ in range(len(self._lines))]:
                self._stream.write("".join(lines))
                self._stream.flush()
        except (OSError, ValueError):
            pass  # the log's reader is gone, and there is no other place to report it
        finally:
            self.release()

    def _write_for_ever(self) -> None:
        while self._some.wait():
            time.sleep(GATHER_SECONDS)
            self._some.clear()
            self.flush()


def log_request(fields: Mapping[str, object]) -> None:
    """A request's line. A gathering handler gets it directly: a LogRecord costs as much as all the rest."""
    if not log.isEnabledFor(logging.INFO):
        return
    handler = next(iter(logging.root.handlers), None)
    if isinstance(handler, GatheringHandler):
        handler.add(line_of(time.time(), "info", "request", fields))
    else:
        log.info("request", extra=dict(fields))


def configure_logs(level: str) -> None:
    """Sends every logger of the process to stderr as JSON."""
    handler = GatheringHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)
    # Pillow warns about each oddity of a damaged file. The client gets an error, and could fill the log with warnings.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    # No line shows these, and collecting them takes a third of the time of a line. Python's "Logging HOWTO" (section
    # Optimization) turns them off this way.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
