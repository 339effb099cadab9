"""The rounds: start, check, measure, end: one server after the other, again and again."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving.environments import InstallError, python_of, versions
from benchmarks.serving.load import LoadError, Prober, Result, ask, drive, wait_until_ready
from benchmarks.serving.network import bench_bundle
from benchmarks.serving.processes import busy_share, running
from benchmarks.serving.servers import CONFGATE, MAX_BATCH, ROOT, Job, Server, environment_of
from service.bundle import load_bundle
from service.gate import sigmoid
from service.preprocess import decode
from service.session import open_session

PNG = ROOT / "examples" / "cat.png"
WARM_UP_SECONDS = 1
SATURATED = 32  # so many requests at once keep the inference thread busy: from here on it can be held against the limit
TOLERANCE = 1e-4
LIVE = "/v2/health/live"


@dataclass
class Findings:
    """Everything that was measured, and what could not be."""

    threads: int
    rounds: int
    seconds: int
    busy_before: float
    results: dict[str, list[Result]] = field(default_factory=dict)
    request_sizes: list[Result] = field(default_factory=list)
    bare: list[dict[str, float]] = field(default_factory=list)
    # Concurrency → in each round, confgate's images/s as a share of ONNX Runtime's just before and just after.
    shares: dict[int, list[float]] = field(default_factory=dict)
    live_ms: list[float] = field(default_factory=list)
    live_failures: list[str] = field(default_factory=list)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


class Bench:
    def __init__(self, cache: Path, port: int, threads: int, seconds: int) -> None:
        self.cache, self.port, self.threads, self.seconds = cache, port, threads, seconds
        self.bundle = bench_bundle(cache / "models").resolve()
        self.expected = _expected(self.bundle)

    def run(
        self,
        servers: Sequence[Server],
        rounds: int,
        concurrencies: Sequence[int],
        request_sizes: Sequence[int],
        tune: bool,
    ) -> Findings:
        findings = Findings(self.threads, rounds, self.seconds, busy_share())
        ready = []
        for listed in servers:
            try:
                installed = versions(python_of(listed, self.cache))
                server = tuned(self, listed, concurrencies) if tune else listed
            except (InstallError, LoadError) as error:
                findings.failures[listed.name] = str(error)
                print(f"{listed.name}: {error}", file=sys.stderr, flush=True)
                continue
            ready.append(server)
            package = server.packages[0].partition("==")[0] if server.packages else "confgate"
            findings.servers[server.name] = {
                "version": installed.get(package, "from source"),
                "onnxruntime": installed["onnxruntime"],
                "settings": dict(server.settings),
                "note": server.note,
            }
        for number in range(rounds):
            # Another one begins each round, so that no server is always the first on a rested machine.
            first = number % max(1, len(ready))
            order = [*ready[first:], *ready[:first]]
            findings.bare += self.measure_bare([*concurrencies, *request_sizes])
            for server in order:
                if server.name not in findings.failures:
                    try:
                        self._measure(server, concurrencies, request_sizes, findings)
                    except LoadError as error:
                        findings.failures[server.name] = str(error)
                        print(f"{server.name}: {error}", file=sys.stderr, flush=True)
        return findings

    def _measure(
        self, server: Server, concurrencies: Sequence[int], request_sizes: Sequence[int], findings: Findings
    ) -> None:
        with self.started(server) as job_and_process:
            job, process = job_and_process
            url, body = f"http://127.0.0.1:{job.port}{server.path}", job.folder / "body"
            limit_before = 0.0
            for concurrency in concurrencies:
                if server is CONFGATE and concurrency >= SATURATED and not limit_before:
                    limit_before = self._limit()
                result = drive(process, url, server.content_type, body, concurrency, self.seconds)
                findings.results.setdefault(server.name, []).append(result)
                print(_line(server.name, result), flush=True)
                if limit_before:
                    # A shared machine is faster in one minute than in the next: the limit is measured beside.
                    limit_after = self._limit()
                    share = result.images_per_second / max(limit_before, limit_after)
                    findings.shares.setdefault(concurrency, []).append(share)
                    limit_before = limit_after
            if server is CONFGATE:
                self._measure_request_sizes(job, process, request_sizes, findings)
                with Prober(job.port, LIVE) as prober:
                    drive(process, url, server.content_type, body, max(concurrencies), self.seconds)
                findings.live_ms += prober.milliseconds
                findings.live_failures += prober.failures

    def _measure_request_sizes(self, job: Job, process: int, sizes: Sequence[int], findings: Findings) -> None:
        """Many images in one request, at a concurrency that keeps the queue filled."""
        png = PNG.read_bytes()
        part = b'--x\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + png + b"\r\n"
        for size in sizes:
            body = job.folder / f"form-{size}"
            body.write_bytes(part * size + b"--x--\r\n")
            url = f"http://127.0.0.1:{job.port}{CONFGATE.path}"
            concurrency = max(2, 64 // size)
            form = "multipart/form-data; boundary=x"
            result = drive(process, url, form, body, concurrency, self.seconds, images=size)
            findings.request_sizes.append(result)
            print(_line(f"confgate, {size} images a request", result), flush=True)

    def _limit(self) -> float:
        """What ONNX Runtime alone makes right now, with the batch sizes that a busy service forms."""
        return max(row["images_per_second"] for row in self.measure_bare((MAX_BATCH // 2, MAX_BATCH)))

    def measure_bare(self, batches: Sequence[int]) -> list[dict[str, float]]:
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
    def started(self, server: Server) -> Iterator[tuple[Job, int]]:
        """A server that is ready, warm, and was seen to answer rightly."""
        folder = (self.cache / "work" / server.name.lower().replace(" ", "-")).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(python_of(server, self.cache), folder, self.bundle, self.port, self.threads)
        png, log = PNG.read_bytes(), folder / "server.log"
        (folder / "body").write_bytes(server.body(png))
        command = server.command(job, server.settings)
        with running(command, environment_of(server, job), folder, log) as process:
            wait_until_ready(process, job.port, server.health, log)
            self._check(server, job, log)
            url = f"http://127.0.0.1:{job.port}{server.path}"
            drive(process.pid, url, server.content_type, folder / "body", 16, WARM_UP_SECONDS)
            self._check(server, job, log)
            yield job, process.pid

    def _check(self, server: Server, job: Job, log: Path) -> None:
        status, answer = 0, b""
        for _ in range(50):  # some are ready before their worker is
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
    """The server with that of its batching settings which is best here: by requests/s, over all concurrencies alike."""
    best, found = 0.0, server
    for variant in server.variants:
        candidate, speeds = replace(server, settings=variant), []
        with bench.started(candidate) as (job, process):
            url = f"http://127.0.0.1:{job.port}{server.path}"
            for concurrency in concurrencies:
                result = drive(process, url, server.content_type, job.folder / "body", concurrency, seconds)
                speeds.append(max(result.images_per_second, 0.1))
        score = statistics.geometric_mean(speeds)
        told = ", ".join(f"{speed:.0f}" for speed in speeds)
        print(f"tuning {server.name}: {dict(variant)}: {told} requests/s, mean {score:.0f}", flush=True)
        if score > best:
            best, found = score, candidate
    return found


def _expected(bundle: Path) -> tuple[int, float]:
    """What ONNX Runtime itself says of the PNG."""
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
