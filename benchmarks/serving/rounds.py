"""The rounds: all servers are up; each in turn is resumed and driven for a second or two, over and over.

A shared machine may be half as fast a minute later, so whatever is compared is measured within seconds.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving.environments import InstallError, python_of, versions
from benchmarks.serving.load import LoadError, Prober, Result, ask, drive, wait_until_ready
from benchmarks.serving.network import bench_bundle
from benchmarks.serving.processes import busy_share, resumed, running, suspend
from benchmarks.serving.servers import CONFGATE, MAX_BATCH, ROOT, Job, Server, environment_of
from service.model.bundle import load_bundle
from service.model.images import decode
from service.model.scores import sigmoid
from service.model.session import open_session

PNG = ROOT / "examples" / "cat.png"
WARM_UP_SECONDS = 1
SATURATED = 32  # requests in flight that keep the inference thread busy: from here on the limit is a fair comparison
TOLERANCE = 1e-4
LIVE = "/v2/health/live"
PORTS_EACH = 10  # some servers open several ports


@dataclass
class Findings:
    """All measurements, and the servers that could not be measured."""

    threads: int
    rounds: int
    seconds: int
    busy_before: float
    results: dict[str, list[Result]] = field(default_factory=dict)
    request_sizes: list[Result] = field(default_factory=list)
    bare: list[dict[str, float]] = field(default_factory=list)
    # Concurrency → in each round, confgate's images/s as a share of ONNX Runtime's, the better of before and after.
    shares: dict[int, list[float]] = field(default_factory=dict)
    live_ms: list[float] = field(default_factory=list)
    live_failures: list[str] = field(default_factory=list)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Running:
    """A server that is up, and its process id."""

    server: Server
    job: Job
    process: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.job.port}{self.server.path}"


class Bench:
    """The settings of a run, and the network with its expected answer."""

    def __init__(self, cache: Path, port: int, threads: int, seconds: int, bundle: Path | None = None) -> None:
        self.cache, self.port, self.threads, self.seconds = cache, port, threads, seconds
        self.bundle = bench_bundle(cache / "models").resolve() if bundle is None else bundle.resolve()
        self.expected = _expected(self.bundle)

    def run(
        self,
        servers: Sequence[Server],
        rounds: int,
        concurrencies: Sequence[int],
        request_sizes: Sequence[int],
        tune: bool,
    ) -> Findings:
        """Measures all servers at all concurrencies, then what only confgate is measured for."""
        findings = Findings(self.threads, rounds, self.seconds, busy_share())
        ready = []
        for listed in servers:
            try:
                installed = versions(python_of(listed, self.cache))
                server = tuned(self, listed, concurrencies) if tune else listed
            except (InstallError, LoadError) as error:
                _note_failure(listed, error, findings)
                continue
            ready.append(server)
            package = server.packages[0].partition("==")[0] if server.packages else "confgate"
            findings.servers[server.name] = {
                "version": installed.get(package, "from source"),
                "onnxruntime": installed["onnxruntime"],
                "settings": dict(server.settings),
                "note": server.note,
            }
        with ExitStack() as servers_up:
            up = self._start_all(ready, servers_up, findings)
            for concurrency in concurrencies:
                findings.bare += self.measure_bare([*concurrencies, *request_sizes])
                for number in range(rounds):
                    # Each turn begins with a different server, so that none always follows the same one.
                    first = number % max(1, len(up))
                    for one in [*up[first:], *up[:first]]:
                        if one.server.name not in findings.failures:
                            self._record(one, concurrency, findings)
            for one in up:
                if one.server is CONFGATE and one.server.name not in findings.failures:
                    with resumed(one.process):
                        self._measure_alone(one, request_sizes, max(concurrencies), rounds, findings)
        return findings

    def _start_all(self, servers: Sequence[Server], stack: ExitStack, findings: Findings) -> list[Running]:
        """Starts every server on ports of its own, and suspends it."""
        up: list[Running] = []
        for server in servers:
            try:
                up.append(stack.enter_context(self.started(server, self.port + PORTS_EACH * len(up))))
                suspend(up[-1].process)
            except LoadError as error:
                _note_failure(server, error, findings)
        return up

    def _record(self, one: Running, concurrency: int, findings: Findings) -> None:
        beside = one.server is CONFGATE and concurrency >= SATURATED
        limits = [self._limit()] if beside else []
        try:
            result = self.measure(one, concurrency)
        except LoadError as error:
            _note_failure(one.server, error, findings)
            return
        findings.results.setdefault(one.server.name, []).append(result)
        print(_line(one.server.name, result), flush=True)
        if beside:
            # The speed of a shared machine changes by the minute: the limit is measured before and after.
            limits.append(self._limit())
            share = result.images_per_second / max(limits)
            findings.shares.setdefault(concurrency, []).append(share)

    def measure(self, one: Running, concurrency: int) -> Result:
        """One turn of a suspended server: resumes it, drives it with wrk, and suspends it again."""
        body = one.job.folder / "body"
        with resumed(one.process):
            return drive(one.process, one.url, one.server.content_type, body, concurrency, self.seconds)

    def _measure_alone(
        self, one: Running, sizes: Sequence[int], concurrency: int, rounds: int, findings: Findings
    ) -> None:
        """Measures what only confgate is measured for: many images per request, and liveness at saturation."""
        self._measure_request_sizes(one, sizes, rounds, findings)
        body = one.job.folder / "body"
        with Prober(one.job.port, LIVE) as prober:
            drive(one.process, one.url, one.server.content_type, body, concurrency, rounds * self.seconds)
        findings.live_ms += prober.milliseconds
        findings.live_failures += prober.failures

    def _measure_request_sizes(self, one: Running, sizes: Sequence[int], rounds: int, findings: Findings) -> None:
        """Measures many images per request, at a concurrency that keeps the queue filled."""
        png = PNG.read_bytes()
        part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + png + b"\r\n"
        form = "multipart/form-data; boundary=x"
        for _, size in product(range(rounds), sizes):
            body = one.job.folder / f"form-{size}"
            body.write_bytes(part * size + b"--x--\r\n")
            result = drive(one.process, one.url, form, body, max(2, 64 // size), self.seconds, images=size)
            findings.request_sizes.append(result)
            print(_line(f"confgate, {size} images per request", result), flush=True)

    def _limit(self) -> float:
        """Images/s of ONNX Runtime alone right now, at the batch sizes that a busy service forms."""
        return max(row["images_per_second"] for row in self.measure_bare((MAX_BATCH // 2, MAX_BATCH)))

    def measure_bare(self, batches: Sequence[int]) -> list[dict[str, float]]:
        """Runs `benchmarks.serving.bare` for those batch sizes that the servers may form too."""
        sizes = [str(batch) for batch in sorted(set(batches)) if batch <= MAX_BATCH]
        command = [sys.executable, "-m", "benchmarks.serving.bare", str(self.bundle / "model.onnx")]
        command += ["--threads", str(self.threads), "--seconds", str(self.seconds / 3), "--batch", *sizes]
        found: list[dict[str, float]] = json.loads(
            subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout
        )
        for row in found:
            print(f"bare ONNX Runtime, batch {row['batch']:<4} {row['images_per_second']:8.0f} images/s", flush=True)
        return found

    @contextmanager
    def started(self, server: Server, port: int) -> Iterator[Running]:
        """A server that is ready and warmed up, and whose answer was checked."""
        folder = (self.cache / "work" / server.name.lower().replace(" ", "-")).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(python_of(server, self.cache), folder, self.bundle, port, self.threads)
        png, log = PNG.read_bytes(), folder / "server.log"
        (folder / "body").write_bytes(server.body(png))
        command = server.command(job, server.settings)
        with running(command, environment_of(server, job), folder, log) as process:
            wait_until_ready(process, job.port, server.health, log)
            self._check(server, job, log)
            one = Running(server, job, process.pid)
            drive(process.pid, one.url, server.content_type, folder / "body", 16, WARM_UP_SECONDS)
            self._check(server, job, log)
            yield one

    def _check(self, server: Server, job: Job, log: Path) -> None:
        status, answer = 0, b""
        for _ in range(50):  # some servers are ready before their worker is
            status, answer = ask(job.port, "POST", server.path, (job.folder / "body").read_bytes(), server.content_type)
            if status == 200:
                break
            time.sleep(0.2)
        if status != 200:
            tail = log.read_text(errors="replace")[-1000:]
            raise LoadError(f"answered {status} {answer[:300]!r}; its log ends: {tail}")
        class_id, confidence = server.read(json.loads(answer))
        if class_id != self.expected[0] or abs(confidence - self.expected[1]) > TOLERANCE:
            raise LoadError(f"answered class {class_id}, confidence {confidence}; ONNX Runtime says {self.expected}")


def tuned(bench: Bench, server: Server, concurrencies: Sequence[int], seconds: int = 2) -> Server:
    """The server with its best batching settings on this machine, by mean requests/s over all concurrencies."""
    best, found = 0.0, server
    for variant in server.variants:
        candidate, speeds = replace(server, settings=variant), []
        with bench.started(candidate, bench.port) as one:
            for concurrency in concurrencies:
                result = drive(one.process, one.url, server.content_type, one.job.folder / "body", concurrency, seconds)
                speeds.append(max(result.images_per_second, 0.1))
        score = statistics.geometric_mean(speeds)
        listed = ", ".join(f"{speed:.0f}" for speed in speeds)
        print(f"tuning {server.name}: {dict(variant)}: {listed} requests/s, mean {score:.0f}", flush=True)
        if score > best:
            best, found = score, candidate
    return found


def _note_failure(server: Server, error: Exception, findings: Findings) -> None:
    findings.failures[server.name] = str(error)
    print(f"{server.name}: {error}", file=sys.stderr, flush=True)


def _expected(bundle: Path) -> tuple[int, float]:
    """The class and confidence that ONNX Runtime itself gives the PNG."""
    opened = load_bundle(bundle)
    outputs = open_session(opened, "forward", "cpu", 1).run(
        decode(PNG.read_bytes(), opened.manifest.input, 10**7)[None]
    )
    confidence = np.asarray(sigmoid(outputs["confidence_logit"]))
    return int(outputs["logits"][0].argmax()), float(confidence[0])


def _line(name: str, result: Result) -> str:
    return (
        f"{name:32} c {result.concurrency:<4} {result.images_per_second:8.0f} images/s  p50 {result.p50_ms:8.2f}  "
        f"p99 {result.p99_ms:8.2f} ms  CPU {result.cpu_per_1000:5.2f} s/1,000  errors {result.errors}"
    )
