"""Starts the servers and takes their turns: one server runs and is measured, the others are stopped (SIGSTOP).

What a turn found is written down at once; a run that was ended goes on where it was.
"""

import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.photos.plan import LIMIT, PHOTOS, Photo, Records, Turn
from benchmarks.photos.servers import environment_of
from benchmarks.serving.environments import InstallError, python_of, versions
from benchmarks.serving.load import LoadError, ask, wait_until_ready, wrk, wrk_program
from benchmarks.serving.processes import cpu_seconds, family, pss_bytes, resumed, running, suspend
from benchmarks.serving.servers import ROOT, Job, Server

TOLERANCE = 1e-4
TUNING_SECONDS = 2
PORTS_EACH = 10  # some servers open several ports
IDLE_CPUS, IDLE_SECONDS, MOST_IDLE_SECONDS = 0.3, 0.3, 20.0


@dataclass(frozen=True)
class Running:
    """A server that is up, and its process id."""

    server: Server
    job: Job
    process: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.job.port}{self.server.path}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": self.server.content_type, **self.server.headers}

    def body(self, photo: Photo) -> Path:
        return self.job.folder / f"body-{photo.name}"


class Run:
    """The settings of a run, its prepared inputs and what it has found so far."""

    def __init__(
        self,
        cache: Path,
        out: Path,
        bundle: Path,
        port: int,
        seconds: int,
        open_seconds: int,
        shares: Sequence[int],
    ) -> None:
        wrk_program()  # raises before anything is made
        self.cache, self.out, self.port = cache.resolve(), out.resolve(), port
        self.seconds, self.open_seconds, self.shares = seconds, open_seconds, shares
        self.cpus = len(os.sched_getaffinity(0))
        self.inputs = self.out / "inputs"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.photos.prepare", str(bundle.resolve()), str(self.inputs)],
            cwd=ROOT,
            check=True,
        )
        self.facts_file = self.inputs / "facts.json"
        self.facts: dict[str, Any] = json.loads(self.facts_file.read_text())
        self.records = Records(self.out / "records.jsonl")
        self._remember_settings()

    def _remember_settings(self) -> None:
        """Turns of other settings or of another network must not be mixed with these."""
        now = {
            "seconds": self.seconds,
            "open_seconds": self.open_seconds,
            "bundle": self.facts["bundle"],
            "graph_sha256": self.facts["sha256"],
            "bytes": self.facts["bytes"],
            "cpus": self.cpus,
        }
        known = self.records.of("settings")
        if not known:
            self.records.add({"kind": "settings", **now})
            return
        differing = [f"{key} {known[0][key]} (now {value})" for key, value in now.items() if known[0][key] != value]
        if differing:
            raise LoadError(
                f"{self.out} holds results of other settings: {', '.join(differing)}. "
                "Give the same settings to go on, or another --out to begin"
            )

    def tuned(self, server: Server, try_variants: bool) -> Server:
        """The server with its best variant on this machine, tried now unless that is on record."""
        if not try_variants or not server.variants:
            return server
        known = [record for record in self.records.of("tuned") if record["server"] == server.name]
        if known and known[-1]["best"] in server.variants:
            return replace(server, settings=known[-1]["best"])
        found: list[tuple[float, Mapping[str, str]]] = []
        tried = []
        for variant in server.variants:
            speeds = []
            try:
                with self.started(replace(server, settings=variant), self.port) as one:
                    for photo in PHOTOS:
                        for concurrency in {8, photo.busy_concurrency}:
                            figures = self._closed(one, photo, concurrency, TUNING_SECONDS * photo.open_times)
                            speeds.append(max(figures["images_per_second"], 0.1))
                            self._wait_until_idle(one)
            except LoadError as error:
                print(f"tuning {server.name}: {dict(variant)}: {error}", file=sys.stderr, flush=True)
                continue
            score = statistics.geometric_mean(speeds)
            found.append((score, variant))
            tried.append({"settings": variant, "images_per_second": speeds})
            listed = ", ".join(f"{speed:.1f}" for speed in speeds)
            print(f"tuning {server.name}: {dict(variant)}: {listed} images/s, mean {score:.1f}", flush=True)
        if not found:
            raise LoadError("none of its settings worked")
        best = max(found, key=lambda pair: pair[0])[1]
        self.records.add({"kind": "tuned", "server": server.name, "best": best, "tried": tried})
        return replace(server, settings=best)

    def install(self, server: Server) -> None:
        """Raises InstallError; otherwise the server's versions are on record."""
        listed = versions(python_of(server, self.cache))
        package = server.packages[0].partition("==")[0].partition("[")[0] if server.packages else "confgate"
        about = {
            "version": listed.get(package, "from source"),
            "onnxruntime": listed["onnxruntime"],
            "pillow": listed["pillow"],
            "note": server.note,
        }
        self.records.add({"kind": "about", "server": server.name, **about})

    def take(self, turns: Sequence[Turn], servers: Sequence[Server], deadline: float) -> bool:
        """Starts the servers and takes the turns that are not on record; False if the deadline came first."""
        done = self.records.done()
        left = [turn for turn in turns if turn.key not in done]
        names = {turn.server for turn in left}
        failed: set[str] = set()
        with ExitStack() as stack:
            up: dict[str, Running] = {}
            for number, server in enumerate(server for server in servers if server.name in names):
                try:
                    up[server.name] = stack.enter_context(self.started(server, self.port + PORTS_EACH * number))
                    suspend(up[server.name].process)
                except LoadError as error:
                    self.note_failure(server.name, error)
            for turn in left:
                if time.monotonic() > deadline:
                    return False
                if turn.server in failed or (turn.server != LIMIT and turn.server not in up):
                    continue
                try:
                    figures = self._measure(turn, up.get(turn.server))
                except LoadError as error:
                    self.note_failure(turn.server, error)
                    failed.add(turn.server)
                    continue
                key = {"round": turn.round, "photo": turn.photo.name, "concurrency": turn.concurrency}
                self.records.add({"kind": "turn", "server": turn.server, **key, **figures})
                _show(turn, figures)
        return True

    def note_failure(self, server: str, error: Exception) -> None:
        self.records.add({"kind": "failure", "server": server, "why": str(error)})
        print(f"{server}: {error}", file=sys.stderr, flush=True)

    def _measure(self, turn: Turn, one: Running | None) -> dict[str, Any]:
        seconds = self.seconds * turn.photo.closed_times
        if one is None:
            return self._limit(turn.photo, seconds)
        with resumed(one.process):
            if turn.concurrency is None:
                figures = self._open(turn, one, seconds)
            else:
                figures = self._closed(one, turn.photo, turn.concurrency, seconds)
            self._wait_until_idle(one)
        return figures

    def _limit(self, photo: Photo, seconds: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.photos.limit", str(self.inputs / photo.file)]
        settings = {"BENCH_THREADS": "1", "BENCH_MAX_BATCH": "1", "OMP_NUM_THREADS": "1"}
        outcome = subprocess.run(
            [*command, "--seconds", str(seconds), "--processes", str(self.cpus)],
            env={**os.environ, **settings, "BENCH_FACTS": str(self.facts_file), "BENCH_MODEL": self.facts["graph"]},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if outcome.returncode:
            raise LoadError(f"the limit could not be measured: {outcome.stderr[-1500:]}")
        figures: dict[str, Any] = json.loads(outcome.stdout)
        return figures

    def _closed(self, one: Running, photo: Photo, concurrency: int, seconds: int) -> dict[str, Any]:
        """wrk asks in a closed loop; memory is looked at while it does."""
        memory: list[int] = []
        look = threading.Timer(0.7 * seconds, lambda: memory.append(pss_bytes(one.process)))
        client = resource.getrusage(resource.RUSAGE_CHILDREN)
        before = cpu_seconds(one.process)
        look.start()
        try:
            found = wrk(one.url, one.headers, one.body(photo), concurrency, seconds)
            spent = cpu_seconds(one.process) - before
        finally:
            look.cancel()
            look.join()
        client_after = resource.getrusage(resource.RUSAGE_CHILDREN)
        errors = found["errors"]
        images = found["requests"] - errors["status"]  # wrk counts an answer such as 503 as a request too
        return {
            "images": images,
            "images_per_second": images / found["seconds"],
            "p50_ms": found["p50_ms"],
            "p99_ms": found["p99_ms"],
            "cpu_seconds": spent,
            "client_cpu_seconds": client_after.ru_utime + client_after.ru_stime - client.ru_utime - client.ru_stime,
            "pss_mb": max(memory) / 1e6 if memory else None,
            "errors": sum(errors.values()),
        }

    def _open(self, turn: Turn, one: Running, seconds: int) -> dict[str, Any]:
        """Arrivals at shares of the server's capacity of right now: a shared machine's speed changes by the minute."""
        capacity = self._closed(one, turn.photo, turn.photo.busy_concurrency, seconds)["images_per_second"]
        loads: list[dict[str, Any]] = []
        for share in self.shares if capacity else ():  # a share of nothing is no load
            self._wait_until_idle(one)
            before = cpu_seconds(one.process)
            command = [sys.executable, "-m", "benchmarks.photos.open_loop", one.url, str(one.body(turn.photo))]
            command += [
                "--rate",
                str(capacity * share / 100),
                "--seconds",
                str(self.open_seconds * turn.photo.open_times),
            ]
            command += ["--seed", str(1000 * turn.round + share)]
            command += [part for name, value in one.headers.items() for part in ("--header", name, value)]
            outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if outcome.returncode:
                raise LoadError(f"the open loop failed: {outcome.stderr[-1500:]}")
            spent = cpu_seconds(one.process) - before
            figures = json.loads(outcome.stdout)
            loads.append({"share": share, "rate": capacity * share / 100, "cpu_seconds": spent, **figures})
        return {"capacity": capacity, "loads": loads}

    def _wait_until_idle(self, one: Running) -> None:
        """Requests whose client is gone may still be computed; stopped with them, a server is late in its next turn."""
        end = time.monotonic() + MOST_IDLE_SECONDS
        while time.monotonic() < end:
            before = cpu_seconds(one.process)
            time.sleep(IDLE_SECONDS)
            if cpu_seconds(one.process) - before < IDLE_CPUS * IDLE_SECONDS:
                return

    @contextmanager
    def started(self, server: Server, port: int) -> Iterator[Running]:
        """A server that is ready and warmed up, and whose answers were checked; its seconds to ready are on record."""
        folder = self.out / "work" / server.name.lower().replace(" ", "-")
        folder.mkdir(parents=True, exist_ok=True)
        bundle = Path(self.facts["models"]) / self.facts["bundle"]
        job = Job(python_of(server, self.cache), folder, bundle, port, self.cpus)
        log = folder / "server.log"
        for photo in PHOTOS:
            (folder / f"body-{photo.name}").write_bytes(server.body((self.inputs / photo.file).read_bytes()))
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                raise LoadError(f"another program listens on port {port}; end it, or give another --port")
        command = server.command(job, server.settings)
        environment = environment_of(server, job, self.facts_file, self.facts["graph"])
        before = time.monotonic()
        with running(command, environment, folder, log) as process:
            one = Running(server, job, process.pid)
            wait_until_ready(process, port, server.health, log)
            self._check(one, PHOTOS[0], log)
            seconds = time.monotonic() - before
            for photo in PHOTOS:
                self._closed(one, photo, 2 * self.cpus, 1)  # so that every process and thread has met such a photo
                self._check(one, photo, log)
            memory = pss_bytes(process.pid) / 1e6
            about = {"settings": dict(server.settings), "processes": len(family(process.pid))}
            self.records.add({"kind": "start", "server": server.name, "seconds": seconds, "pss_mb": memory, **about})
            print(f"{server.name}: ready in {seconds:.1f} s, {memory:.0f} MB", flush=True)
            yield one

    def _check(self, one: Running, photo: Photo, log: Path) -> None:
        body, status, answer = one.body(photo).read_bytes(), 0, b""
        for _ in range(100):  # some servers are ready before their worker is
            status, answer = ask(
                one.job.port, "POST", one.server.path, body, one.server.content_type, headers=one.server.headers
            )
            if status == 200:
                break
            time.sleep(0.1)
        if status != 200:
            tail = log.read_text(errors="replace")[-1000:]
            raise LoadError(f"answered {status} {answer[:300]!r}; its log ends: {tail}")
        class_id, probability = one.server.read(json.loads(answer))
        expected = self.facts["answers"][photo.name]
        if class_id != expected[0] or abs(probability - expected[1]) > TOLERANCE:
            raise LoadError(
                f"answered class {class_id} with probability {probability} to {photo.file}; "
                f"confgate's decoder and ONNX Runtime say {expected}"
            )


def _show(turn: Turn, figures: Mapping[str, Any]) -> None:
    name = f"{turn.round + 1}  {turn.photo.name:8} {turn.server:11}"
    if turn.concurrency is not None:
        memory = f"{figures['pss_mb']:6.0f} MB" if figures["pss_mb"] else ""
        print(
            f"{name} c {turn.concurrency:<4} {figures['images_per_second']:7.1f} images/s  p50 {figures['p50_ms']:8.1f}"
            f"  p99 {figures['p99_ms']:8.1f} ms {memory}  errors {figures.get('errors', 0)}",
            flush=True,
        )
        return
    for load in figures["loads"]:
        ranked = sorted(load["latencies_ms"]) or [float("nan")]
        print(
            f"{name} {load['share']} % of {figures['capacity']:.1f}/s  p50 {ranked[len(ranked) // 2]:8.1f}"
            f"  p99 {ranked[int(0.99 * len(ranked))]:8.1f} ms  lag p99 {load['lag_p99_ms']:.1f} ms"
            f"  errors {load['errors']}",
            flush=True,
        )


__all__ = ["InstallError", "LoadError", "Run"]
