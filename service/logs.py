"""Logs as one JSON object per line. Images never get here: only ids, names, decisions and timings do."""

import logging
import os
import select
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import TracebackType

from pydantic_core import to_json

log = logging.getLogger("confgate")

STDERR = 2
GATHER_SECONDS = 0.02
# What may wait while nobody reads: about ten seconds of a busy service's lines.
MAX_LINES, MAX_BYTES = 20_000, 8_000_000
# For the last lines of a process, which would wait for ever for a reader that has stopped reading.
END_SECONDS = 1.0
# What every LogRecord has; anything else was given as `extra` and belongs in the line.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return line_of(record.created, record.levelname.lower(), record.getMessage(), fields).decode()


def line_of(created: float, level: str, message: str, fields: Mapping[str, object]) -> bytes:
    whole = int(created)
    time = f"{_second(whole)}.{int((created - whole) * 1000):03}+00:00"
    return to_json({"time": time, "level": level, "message": message, **fields}, serialize_unknown=True)


@lru_cache(maxsize=1)
def _second(whole: int) -> str:
    """Cached, because many lines share a second and formatting it takes as long as the rest of a line."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class GatheringHandler(logging.Handler):
    """Gathers lines, which its own thread writes a few times a second, or at once from a warning on.

    A write releases the GIL, and the writing thread then waits to get it back. One write for each request would make
    the event loop wait as often, so many lines share one. A write also waits for its reader, perhaps for ever. So no
    other thread writes, the lines that wait have limits, and what exceeds them is dropped and counted.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.dropped = 0
        # Not a stream: the lock of one that waits for its reader would keep the interpreter from ending.
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        # Both count what is being written too.
        self._unwritten_bytes = 0
        self._added = self._finished = 0
        self._told = 0  # of the dropped lines, those that a line has told about
        # Reentrant: to add a line may run a finaliser, which may add another.
        self._counting = threading.RLock()
        self._some, self._urgent = threading.Event(), threading.Event()
        threading.Thread(target=self._write_for_ever, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        self.add(self.format(record).encode(), urgent=record.levelno >= logging.WARNING)

    def add(self, line: bytes, urgent: bool = False) -> None:
        """From any thread; never waits for the reader."""
        size = len(line) + 1
        with self._counting:
            if self._added - self._finished >= MAX_LINES or self._unwritten_bytes + size > MAX_BYTES:
                self.dropped += 1
                return
            self._lines.append(line)
            self._added += 1
            self._unwritten_bytes += size
        if urgent and not self._urgent.is_set():
            self._urgent.set()
        if not self._some.is_set():
            self._some.set()

    def flush(self, seconds: float = END_SECONDS) -> None:
        """Waits until the lines so far are written, but not longer. `logging` calls it when the process ends."""
        last, end = self._added, time.monotonic() + seconds
        self._urgent.set()
        while self._finished < last and time.monotonic() < end:
            time.sleep(0.002)

    def _write_for_ever(self) -> None:
        while self._some.wait():
            self._urgent.wait(GATHER_SECONDS)
            self._urgent.clear()
            self._some.clear()
            with self._counting:
                lines, self._lines = self._lines, []
                dropped = self.dropped
            self._write(lines, dropped)

    def _write(self, lines: list[bytes], dropped: int) -> None:
        content = b"\n".join([*lines, b""])
        news = b""
        if dropped > self._told:
            fields = {"dropped": dropped - self._told}
            news = line_of(time.time(), "warning", "log lines were dropped: they were not read in time", fields) + b"\n"
        lost = 0
        try:
            self._write_all(content + news)
            self._told = dropped
        except OSError:
            lost = len(lines)  # the reader is gone or the disk full, and there is no other place to say so
        with self._counting:
            self.dropped += lost
            self._unwritten_bytes -= len(content)
            self._finished += len(lines)
        if self.dropped > self._told and not lost:
            self._some.set()  # lines that were dropped meanwhile are told at once, and not with the next line

    def _write_all(self, content: bytes) -> None:
        left = memoryview(content)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process that has this stderr made it non-blocking
                select.select([], [self._descriptor], [])


def _gathering_handler() -> GatheringHandler | None:
    handler = next(iter(logging.root.handlers), None)
    return handler if isinstance(handler, GatheringHandler) else None


def log_request(fields: Mapping[str, object]) -> None:
    """A request's line. A gathering handler gets it directly: a LogRecord costs as much as all the rest."""
    if not log.isEnabledFor(logging.INFO):
        return
    if (handler := _gathering_handler()) is not None:
        handler.add(line_of(time.time(), "info", "request", fields))
    else:
        log.info("request", extra=dict(fields))


def dropped_lines() -> int:
    """Lines that nobody read in time."""
    handler = _gathering_handler()
    return 0 if handler is None else handler.dropped


def flush_logs(seconds: float = END_SECONDS) -> None:
    """Waits until the lines so far are written, but not longer."""
    if (handler := _gathering_handler()) is not None:
        handler.flush(seconds)


def configure_logs(level: str) -> None:
    """Sends every logger of the process to stderr as JSON, and what Python itself would print there."""
    _fill_standard_descriptors()
    handler = GatheringHandler(STDERR)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda raised: _log_error(f"thread {getattr(raised.thread, 'name', None)}", raised.exc_value)
    sys.unraisablehook = lambda raised: _log_error(raised.err_msg or "a finaliser", raised.exc_value)
    # Pillow warns about each oddity of a damaged file. The client gets an error, and could fill the log with warnings.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    # No line shows these, and collecting them takes a third of the time of a line. Python's "Logging HOWTO" (section
    # Optimization) turns them off this way.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _fill_standard_descriptors() -> None:
    """Where stdin, stdout or stderr are closed, the next file or socket would get their number, and what is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def _log_uncaught(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    _log_error("the process", error)


def _log_error(where: str, error: BaseException | None) -> None:
    log.error("uncaught error", exc_info=error, extra={"where": where})
