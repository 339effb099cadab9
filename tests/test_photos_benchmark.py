"""The benchmark on photos measures what it says: its open loop, its order of turns, its bodies and its report."""

import io
import itertools
import json
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.photos.open_loop import OpenLoop, answer_length, arrivals, request_bytes
from benchmarks.photos.plan import LIMIT, PHOTOS, Records, turns
from benchmarks.photos.prepare import jpeg
from benchmarks.photos.report import closed_table, goals, open_table, write_report
from benchmarks.photos.servers import V2_HEAD_BYTES, servers

ROOT = Path(__file__).parents[1]
SMALL = PHOTOS[0]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


@contextmanager
def answering(*answers: bytes, once_received: int = 1) -> Iterator[int]:
    """A server that sends one answer after another, the last of them again and again, once it has so many requests."""
    listener = socket.create_server(("127.0.0.1", 0))
    waiting, received, changed = list(answers), [], threading.Condition()

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            while head := file.readline():
                length = 0
                while (head := file.readline()) != b"\r\n":
                    if head.lower().startswith(b"content-length:"):
                        length = int(head.split(b":")[1])
                file.read(length)
                with changed:
                    received.append(length)
                    changed.notify_all()
                    changed.wait_for(lambda: len(received) >= once_received, timeout=20)
                    answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                if not answer:
                    return
                connection.sendall(answer)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def open_loop(port: int, folder: Path, rate: float, seconds: float) -> dict:
    body = folder / "body"
    body.write_bytes(b"x" * 300_000)  # more than a socket takes at once
    command = [sys.executable, "-m", "benchmarks.photos.open_loop", f"http://127.0.0.1:{port}/", str(body)]
    command += ["--rate", str(rate), "--seconds", str(seconds), "--header", "Content-Type", "image/jpeg"]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


def test_arrivals_are_a_poisson_process_with_the_same_pattern_at_every_rate() -> None:
    """The gaps have the mean and the spread of an exponential distribution, and the rate only scales them."""
    times = arrivals(100, 100, seed=3)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.01, rel=0.05)
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(mean, rel=0.05)
    assert [2 * time for time in arrivals(200, 50, seed=3)] == pytest.approx(times)
    assert arrivals(100, 100, seed=4) != times


@pytest.mark.parametrize("answer", [OK, CHUNKED])
def test_an_answer_ends_where_http_says(answer: bytes) -> None:
    """No part of an answer passes for a whole one, and what follows it is not counted."""
    assert answer_length(answer + b"HTTP/1.1 200") == len(answer)
    for end in range(len(answer)):
        length = answer_length(answer[:end])
        assert length is None or length > end


def test_latency_counts_from_when_a_request_was_due_not_from_when_it_was_sent() -> None:
    """A generator that was late itself does not make the server look faster."""
    with answering(OK) as port:
        url = f"http://127.0.0.1:{port}/"
        found = OpenLoop(url, request_bytes(url, [], b"x")).run([-0.5, -0.25])
    assert found["errors"] == 0
    assert max(found["latencies_ms"]) >= 500
    assert min(found["latencies_ms"]) >= 250


def test_a_request_does_not_wait_for_the_answers_to_earlier_ones(tmp_path: Path) -> None:
    """A server that answers nothing until it has every request still gets them all, each with the time it waited."""
    due = arrivals(40, 1, seed=0)
    with answering(OK, once_received=len(due)) as port:
        found = open_loop(port, tmp_path, rate=40, seconds=1)
    assert found["sent"] == len(due) == len(found["latencies_ms"])
    assert found["errors"] == 0
    assert found["connections"] == len(due)
    # Nothing was answered before the last request was due.
    waited = sorted(1000 * (due[-1] - one) for one in due)
    for latency, least in zip(sorted(found["latencies_ms"]), waited, strict=True):
        assert latency >= least - 0.01  # rounded


def test_what_is_not_answered_with_200_is_an_error(tmp_path: Path) -> None:
    """A refusal and a closed connection count as errors, and have no latency."""
    busy = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
    with answering(OK, busy, b"", CHUNKED) as port:
        found = open_loop(port, tmp_path, rate=40, seconds=1)
    assert found["errors"] == 2
    assert len(found["latencies_ms"]) == found["sent"] - 2


def test_every_server_is_measured_with_every_load_and_first_once() -> None:
    """A run has each turn once, servers that are compared follow one another, and each of them is first in a round."""
    names = [LIMIT, "a", "b"]
    plan = list(turns(3, PHOTOS, (1, 8), names))
    assert len({turn.key for turn in plan}) == len(plan) == 3 * len(PHOTOS) * (2 * 3 + 2)
    assert [turn.server for turn in plan[:3]] == names
    firsts = {next(t.server for t in plan if t.round == number) for number in range(3)}
    assert firsts == set(names)
    assert all(turn.concurrency for turn in plan if turn.server == LIMIT)


def test_a_run_that_was_killed_goes_on_after_its_last_whole_turn(tmp_path: Path) -> None:
    """A line that was cut off while it was written is not a turn, and does not spoil the next one."""
    path = tmp_path / "records.jsonl"
    turn = {"kind": "turn", "round": 0, "photo": SMALL.name, "concurrency": 8, "server": "a"}
    Records(path).add(turn)
    path.write_text(path.read_text() + json.dumps({**turn, "round": 1})[:40])
    records = Records(path)
    assert records.done() == {(0, SMALL.name, 8, "a")}
    records.add({**turn, "round": 1})
    assert Records(path).done() == {(0, SMALL.name, 8, "a"), (1, SMALL.name, 8, "a")}


def test_the_photo_is_a_photo_like_jpeg_and_always_the_same() -> None:
    """It has the size in pixels and nearly the size in bytes that it should, and the same bytes each time."""
    encoded = jpeg(SMALL)
    assert encoded == jpeg(SMALL)
    assert 0.8 * SMALL.most_bytes < len(encoded) <= SMALL.most_bytes
    photo = Image.open(io.BytesIO(encoded))
    assert (photo.format, photo.size) == ("JPEG", (SMALL.width, SMALL.height))


def test_binary_requests_of_the_open_inference_protocol_say_where_their_tensor_is() -> None:
    """The header names the length of the JSON; the bytes after it are the file, in KServe's and in Triton's form."""
    for server in servers(2):
        if not server.headers:
            continue
        body = server.body(b"\xff\xd8 file")
        assert server.headers == {"Inference-Header-Content-Length": str(V2_HEAD_BYTES)}
        tensor = json.loads(body[:V2_HEAD_BYTES])["inputs"][0]
        data = body[V2_HEAD_BYTES:]
        assert tensor["parameters"]["binary_data_size"] == len(data)
        assert data == (struct.pack("<I", 7) if tensor["datatype"] == "BYTES" else b"") + b"\xff\xd8 file"


def closed(server: str, number: int, speed: float, **others: float) -> dict:
    at = {"kind": "turn", "round": number, "photo": SMALL.name, "concurrency": 8, "server": server}
    figures = {"images": 100, "images_per_second": speed, "p50_ms": 9, "p99_ms": 20, "cpu_seconds": 1, "pss_mb": 300}
    return {**at, **figures, **others}


def test_the_report_compares_within_a_round_and_judges_the_goals(tmp_path: Path) -> None:
    """Ratios are medians over rounds, not ratios of medians; goals that are missed are said to be missed."""
    records = Records(tmp_path / "records.jsonl")
    for record in (
        {"kind": "settings", "seconds": 4, "open_seconds": 12, "bundle": "b/1", "bytes": {SMALL.name: 1}},
        *({"kind": "about", "server": name, "version": "1", "note": ""} for name in ("confgate", "peer")),
        *(
            {"kind": "start", "server": name, "seconds": 2.0, "pss_mb": 200, "processes": 1, "settings": {}}
            for name in ("confgate", "peer")
        ),
    ):
        records.add(record)
    # The machine is twice as fast in the last round: by medians confgate would be 100 / 90 of the peer.
    for number, (ours, theirs, limit) in enumerate([(100, 50, 110), (100, 90, 105), (200, 150, 210)]):
        records.add(closed("confgate", number, ours, pss_mb=310))
        records.add(closed("peer", number, theirs))
        records.add(closed(LIMIT, number, limit))
    for server, extra in (("confgate", []), ("peer", [40.0] * 20)):
        load = {"share": 70, "rate": 70, "latencies_ms": [10.0] * 1000 + extra, "errors": 0, "sent": 1000}
        load |= {"lag_p99_ms": 1.0, "cpu_seconds": 1, "client_cpu_seconds": 0.1}
        at = {"kind": "turn", "round": 0, "photo": SMALL.name, "concurrency": None, "server": server}
        records.add({**at, "capacity": 100, "loads": [load]})
    cell = closed_table(records)[SMALL.name]["confgate"][8]
    assert (cell.images_per_second, cell.lowest, cell.highest) == (100, 100, 200)
    assert cell.share_of_limit == pytest.approx(200 / 210)
    assert cell.cpu_per_1000 == 10
    latency = open_table(records)[SMALL.name]["peer"][70]
    assert (latency.p50_ms, latency.p99_ms, latency.p999_ms) == (10, 40, 40)
    judged = {goal.what: (goal.found, goal.met) for goal in goals(records)}
    assert judged == {
        f"{SMALL.name}: ≥ 1.25 × the best other at 8": ("1.33 × peer", True),
        f"{SMALL.name}: ≥ 92% of the limit at 8": ("95.2%", True),
        f"{SMALL.name}: lowest p99 at 70 % of its capacity": ("10.0 ms, peer 40.0 ms", True),
        "least memory under load": ("310 MB, peer 300 MB", False),
    }
    text = write_report(tmp_path)
    assert "**not met**" in text
    assert {path.name for path in tmp_path.iterdir()} >= {"results.json", "results.md", "photos.png"}


def test_unanswered_requests_count_as_the_slowest(tmp_path: Path) -> None:
    """A server does not lower its p99 by leaving requests without an answer."""
    records = Records(tmp_path / "records.jsonl")
    load = {"share": 90, "rate": 90, "latencies_ms": [10.0] * 90, "errors": 10, "sent": 100}
    load |= {"lag_p99_ms": 1.0, "cpu_seconds": 1, "client_cpu_seconds": 0.1}
    at = {"kind": "turn", "round": 0, "photo": SMALL.name, "concurrency": None, "server": "a"}
    records.add({**at, "capacity": 100, "loads": [load]})
    cell = open_table(records)[SMALL.name]["a"][90]
    assert (cell.p50_ms, cell.p99_ms, cell.p999_ms) == (10, float("inf"), None)


def test_a_missing_bundle_is_said_with_what_to_do(tmp_path: Path) -> None:
    """Without a bundle of photos the command says so before it installs anything."""
    command = [sys.executable, "-m", "benchmarks.photos", "--out", str(tmp_path), "--bundle", str(tmp_path / "none")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "bundle" in ended.stderr
    assert not (tmp_path / "records.jsonl").exists()
