"""Logs that nobody reads, and streams that are closed: the service goes on, and says what was lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

from service.logs import MAX_LINES, GatheringHandler
from tests.conftest import RED, ROOT, make_bundle
from tests.costly_files import slow_png
from tests.faults.processes import BareService, client_of, connect, label, metric

LONG_PATH = "/" + "x" * 60_000
# More than the bytes that may wait, in lines that hold the path.
LONG_LINES = 160


def test_a_log_that_nobody_reads_holds_nobody_up(models: Path) -> None:
    """With a stderr that nobody reads, requests are answered also after warnings; lines beyond the limit are counted,
    and SIGTERM ends the service."""
    make_bundle(models)
    reader, writer = os.pipe()
    with BareService(models, stderr=writer) as service:
        os.close(writer)
        with client_of(service.wait_until_ready()) as client:
            assert metric(client, "confgate_log_lines_dropped_total") == 0
            for _ in range(LONG_LINES):
                assert client.get(LONG_PATH).status_code == 404
            with connect(service, b"not HTTP\r\n\r\n") as connection:  # which makes uvicorn log a warning
                assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")
            assert label(client, RED) == "red"
            assert metric(client, "confgate_log_lines_dropped_total") > 0
        assert service.stop() == 0
    os.close(reader)


def test_a_reader_that_comes_back_learns_how_many_lines_it_missed() -> None:
    """Lines are whole and in their order, it is said how many were dropped after them, and then all goes on."""
    reader, writer = os.pipe()
    handler, total = GatheringHandler(writer), 4 * MAX_LINES
    for number in range(total):
        handler.add(b'{"number":%d}' % number)
    assert 0 < handler.dropped < total
    numbers: list[int] = []
    dropped = 0
    with os.fdopen(reader, "rb") as log:
        while len(numbers) + dropped < total:
            line = json.loads(log.readline())
            numbers += [line["number"]] if "number" in line else []
            dropped += line.get("dropped", 0)
        assert dropped == handler.dropped
        assert numbers == list(range(len(numbers)))
        handler.add(b"{}")
        assert log.readline() == b"{}\n"
    os.close(writer)


def test_a_reader_that_is_gone_costs_lines_and_nothing_else() -> None:
    """Where nobody can read any more, lines are dropped and counted, and nothing waits."""
    reader, writer = os.pipe()
    handler = GatheringHandler(writer)
    os.close(reader)
    for _ in range(3):
        handler.add(b"{}")
    handler.flush()
    assert handler.dropped == 3
    os.close(writer)


def test_closed_streams_are_no_obstacle(models: Path) -> None:
    """Started without stdin, stdout and stderr, the service answers small and large images, and no file or socket gets
    a number to which libraries print."""
    make_bundle(models)
    closed = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
    with BareService(models, through=closed) as service, client_of(service.wait_until_ready()) as client:
        assert label(client, RED) == "red"
        assert label(client, slow_png())
        standard = [Path(f"/proc/{service.process.pid}/fd/{number}").readlink() for number in range(3)]
        assert standard == [Path(os.devnull)] * 3
        assert service.stop() == 0


def test_what_python_prints_is_a_line_of_the_log_too() -> None:
    """Warnings, and uncaught errors of threads, finalisers and the process itself, are JSON like all lines."""
    program = """
import threading, warnings
from service.logs import configure_logs
configure_logs("info")

class Thing:
    def __del__(self):
        1 / 0

warnings.warn("odd")
thread = threading.Thread(target=lambda: 1 / 0, name="stumbling")
thread.start()
thread.join()
Thing()
raise ValueError("the end")
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert "odd" in lines[0]["message"]
    assert [line["where"] for line in (lines[1], lines[3])] == ["thread stumbling", "the process"]
    errors = [line["error"].splitlines()[-1] for line in lines[1:]]
    assert errors == ["ZeroDivisionError: division by zero"] * 2 + ["ValueError: the end"]
