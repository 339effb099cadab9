"""The servers that are compared: how to start each, what to send, and how to read its answer.

Each has one inference worker with the same number of ONNX Runtime threads. `variants` are the batching settings from
which a run chooses the best for its machine. The request is the cheapest form that the server accepts.
"""

import base64
import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MAX_BATCH = 32


@dataclass(frozen=True)
class Job:
    """Where a server runs: its interpreter, a folder of its own, the network, and the first of its free ports."""

    python: Path
    folder: Path
    bundle: Path
    port: int
    threads: int

    @property
    def graph(self) -> Path:
        return self.bundle / "model.onnx"


@dataclass(frozen=True)
class Server:
    """One server and how to use it."""

    name: str
    packages: tuple[str, ...]  # what pip installs into its environment; none: it runs in this one
    command: Callable[[Job, Mapping[str, str]], list[str]]  # from its settings; may write files into the job's folder
    path: str
    content_type: str
    body: Callable[[bytes], bytes]
    read: Callable[[Any], tuple[int, float]]  # JSON answer → class id, confidence
    health: str
    settings: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Mapping[str, str], ...] = ()
    note: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # beside the content type


def environment_of(server: Server, job: Job) -> dict[str, str]:
    """The environment variables that every server gets, and its own settings."""
    return {
        "TMPDIR": str(job.folder.resolve()),
        "PYTHONPATH": str(HERE if server.packages else ROOT),
        "OMP_NUM_THREADS": "1",
        "BENCH_MODEL": str(job.graph.resolve()),
        "BENCH_THREADS": str(job.threads),
        "BENCH_MAX_BATCH": str(MAX_BATCH),
        "BENCH_PORT": str(job.port),
        **server.settings,
    }


# The versions of Pillow and ONNX Runtime that confgate has: all servers decode and compute with the same code.
RUNTIME = ("onnxruntime==1.31.1", "pillow==13.0.0")


def _confgate(job: Job, _: Mapping[str, str]) -> list[str]:
    # As shipped, including the access log; only the number of threads is the benchmark's.
    flags = {"--models": job.bundle.parents[1], "--port": job.port, "--device": "cpu", "--threads": job.threads}
    return [str(job.python), "-m", "service", "serve", *(str(part) for flag in flags.items() for part in flag)]


def _litserve(job: Job, _: Mapping[str, str]) -> list[str]:
    return [str(job.python), "-m", "peers.litserve_app"]


def _kserve(job: Job, _: Mapping[str, str]) -> list[str]:
    return [str(job.python), "-m", "peers.kserve_app"]


def _mlserver(job: Job, settings: Mapping[str, str]) -> list[str]:
    return mlserver_command(job, 0, MAX_BATCH, float(settings["MLSERVER_BATCH_SECONDS"]))


def mlserver_command(job: Job, workers: int, max_batch: int, batch_seconds: float) -> list[str]:
    """Writes the settings for the model of `peers.mlserver_model`; 0 workers: it runs in the server's process."""
    ports = {
        "host": "127.0.0.1",
        "http_port": job.port,
        "grpc_port": job.port + 1,
        "metrics_port": job.port + 2,
        "debug": False,
        "parallel_workers": workers,
    }
    (job.folder / "settings.json").write_text(json.dumps(ports))
    batching = {"max_batch_size": max_batch, "max_batch_time": batch_seconds}
    model = {"name": "bench", "implementation": "peers.mlserver_model.Model", **batching}
    (job.folder / "model-settings.json").write_text(json.dumps(model))
    return [str(job.python.with_name("mlserver")), "start", str(job.folder)]


def _torchserve(job: Job, settings: Mapping[str, str]) -> list[str]:
    handler = HERE / "peers" / "torchserve_handler.py"
    return torchserve_command(job, handler, 1, MAX_BATCH, int(settings["TORCHSERVE_BATCH_DELAY_MS"]))


def torchserve_command(job: Job, handler: Path, workers: int, max_batch: int, delay_ms: int) -> list[str]:
    """Packs the handler as a model archive and writes TorchServe's settings."""
    # TorchServe would take files of an earlier run for a running server and for a model to load.
    (job.folder / ".model_server.pid").unlink(missing_ok=True)
    shutil.rmtree(job.folder / "logs", ignore_errors=True)
    store = job.folder / "store"
    store.mkdir(exist_ok=True)
    manifest = {
        "createdOn": "01/01/2026 00:00:00",
        "runtime": "python",
        "archiverVersion": "0.12.0",
        "model": {"modelName": "bench", "modelVersion": "1.0", "handler": "torchserve_handler.py"},
    }
    with zipfile.ZipFile(store / "bench.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.write(handler, "torchserve_handler.py")
    batching = {"minWorkers": workers, "maxWorkers": workers, "batchSize": max_batch, "maxBatchDelay": delay_ms}
    model = {"defaultVersion": True, "marName": "bench.mar", "responseTimeout": 120, **batching}
    lines = {
        "inference_address": f"http://127.0.0.1:{job.port}",
        "management_address": f"http://127.0.0.1:{job.port + 1}",
        "metrics_address": f"http://127.0.0.1:{job.port + 2}",
        "grpc_inference_port": job.port + 3,
        "grpc_management_port": job.port + 4,
        "load_models": "bench.mar",
        "models": json.dumps({"bench": {"1.0": model}}),
        "job_queue_size": 1000,
        "max_request_size": 20_000_000,
        "disable_token_authorization": "true",
        "disable_system_metrics": "true",
        "install_py_dep_per_model": "false",
    }
    (job.folder / "config.properties").write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    config = str(job.folder / "config.properties")
    logging = job.folder / "log4j2.xml"
    logging.write_text('<Configuration><Loggers><Root level="error"/></Loggers></Configuration>')
    command = [str(job.python.with_name("torchserve")), "--start", "--foreground", "--disable-token-auth"]
    return [*command, "--model-store", str(store), "--ts-config", config, "--log-config", str(logging)]


def _json_image(key: str, wrap: Callable[[dict[str, str]], Any] = lambda item: item) -> Callable[[bytes], bytes]:
    return lambda png: json.dumps(wrap({key: base64.b64encode(png).decode()})).encode()


def _v2_request(png: bytes) -> bytes:
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1, 1], "data": [base64.b64encode(png).decode()]}
    return json.dumps({"inputs": [tensor]}).encode()


def _read_v2(answer: Any) -> tuple[int, float]:
    columns = {output["name"]: output["data"] for output in answer["outputs"]}
    return int(columns["class_id"][0]), float(columns["confidence"][0])


def _read_plain(answer: Any) -> tuple[int, float]:
    return answer["class_id"], answer["confidence"]


def _read_first(answer: Any) -> tuple[int, float]:
    return _read_plain(answer["predictions"][0])


CONFGATE = Server(
    name="confgate",
    packages=(),
    command=_confgate,
    path="/v1/predict",
    content_type="image/png",
    body=lambda png: png,
    read=_read_first,
    health="/v2/health/ready",
    note="natural batching, as it ships",
)
LITSERVE = Server(
    name="LitServe",
    packages=("litserve==0.2.19", *RUNTIME),
    command=_litserve,
    path="/predict",
    content_type="application/json",
    body=_json_image("image"),
    read=_read_plain,
    health="/health",
    settings={"LITSERVE_BATCH_TIMEOUT": "0.001", "LITSERVE_FAST_QUEUE": "0"},
    variants=tuple(
        {"LITSERVE_BATCH_TIMEOUT": timeout, "LITSERVE_FAST_QUEUE": fast}
        for timeout in ("0.0", "0.001", "0.005")
        for fast in ("0", "1")
    ),
)
TORCHSERVE = Server(
    name="TorchServe",
    # PyYAML: its workers import it, but the package does not require it.
    packages=("torchserve==0.12.0", "torch==2.13.0", "pyyaml==6.0.3", *RUNTIME),
    command=_torchserve,
    path="/predictions/bench",
    content_type="image/png",
    body=lambda png: png,
    read=_read_plain,
    health="/ping",
    settings={"TORCHSERVE_BATCH_DELAY_MS": "1"},
    variants=tuple({"TORCHSERVE_BATCH_DELAY_MS": delay} for delay in ("1", "3", "10")),
)
MLSERVER = Server(
    name="MLServer",
    # uvloop: the worker processes of this version do not start with a later one.
    packages=("mlserver==1.7.1", "uvloop==0.21.0", *RUNTIME),
    command=_mlserver,
    path="/v2/models/bench/infer",
    content_type="application/json",
    body=_v2_request,
    read=_read_v2,
    health="/v2/models/bench/ready",
    settings={"MLSERVER_BATCH_SECONDS": "0.001", "MLSERVER_IN_THREAD": "0"},
    variants=tuple(
        {"MLSERVER_BATCH_SECONDS": seconds, "MLSERVER_IN_THREAD": thread}
        for seconds in ("0.0005", "0.001", "0.005")
        for thread in ("0", "1")
    ),
)
KSERVE = Server(
    name="KServe SDK",
    packages=("kserve==0.21.0", *RUNTIME),
    command=_kserve,
    path="/v1/models/bench:predict",
    content_type="application/json",
    body=_json_image("image", lambda item: {"instances": [item]}),
    read=_read_first,
    health="/v2/models/bench/ready",
    note="has no batching of its own",
)
SERVERS = (CONFGATE, LITSERVE, TORCHSERVE, MLSERVER, KSERVE)
