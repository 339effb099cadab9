"""The servers that are compared on photos: how to start each, what to send, and how to read its answer.

Each may use all CPUs. `variants` are the settings from which a run chooses the best for its machine: processes with one
thread each, or one process with as many threads as CPUs, and batches. The request is the cheapest form that the server
accepts. What is installed is that of `benchmarks.serving`, where a server is in both.
"""

import json
import struct
import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serving import servers as one_thread
from benchmarks.serving.servers import ROOT, RUNTIME, Job, Server, mlserver_command, torchserve_command

HERE = Path(__file__).parent
JPEG = "image/jpeg"
Settings = Mapping[str, str]
# The head of a V2 request with binary data is padded with spaces to this length, which a header must name.
V2_HEAD_BYTES = 192


def environment_of(server: Server, job: Job, facts: Path, graph: str) -> dict[str, str]:
    """The environment variables of a server's processes: confgate gets none that changes what it does."""
    if not server.packages:
        return {"TMPDIR": str(job.folder), "PYTHONPATH": str(ROOT)}
    return {
        "TMPDIR": str(job.folder),
        "PYTHONPATH": str(HERE),
        # Triton's Python backend must find the library of the Python that it runs with, not another 3.11's.
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
        "OMP_NUM_THREADS": "1",
        "BENCH_FACTS": str(facts),
        "BENCH_MODEL": graph,
        "BENCH_PORT": str(job.port),
        **server.settings,
    }


def setting(workers: int, threads: int, batch: int = 1, delay_ms: float = 0, **others: str) -> dict[str, str]:
    return {
        "BENCH_WORKERS": str(workers),
        "BENCH_THREADS": str(threads),
        "BENCH_MAX_BATCH": str(batch),
        "BENCH_DELAY_MS": f"{delay_ms:g}",
        **others,
    }


def _confgate(job: Job, _: Settings) -> list[str]:
    return [str(job.python), "-m", "service", "serve", "--models", str(job.bundle.parents[1]), "--port", str(job.port)]


def _module(name: str) -> Any:
    return lambda job, _: [str(job.python), "-m", f"peers.{name}"]


def _mlserver(job: Job, settings: Settings) -> list[str]:
    workers = int(settings["BENCH_WORKERS"])
    delay = float(settings["BENCH_DELAY_MS"]) / 1000
    return mlserver_command(job, 0 if workers == 1 else workers, int(settings["BENCH_MAX_BATCH"]), delay)


def _torchserve(job: Job, settings: Settings) -> list[str]:
    handler = HERE / "peers" / "torchserve_handler.py"
    workers, batch, delay = (int(settings[f"BENCH_{name}"]) for name in ("WORKERS", "MAX_BATCH", "DELAY_MS"))
    return torchserve_command(job, handler, workers, batch, delay)


def _bentoml(job: Job, _: Settings) -> list[str]:
    return [str(job.python.with_name("bentoml")), "serve", "peers.bentoml_service:Bench", "--working-dir", str(HERE)]


def _v2_binary(datatype: str, shape: list[int], tensor: bytes) -> bytes:
    """A V2 request whose one tensor follows the JSON as it is."""
    size = {"binary_data_size": len(tensor)}
    head = {"inputs": [{"name": "image", "datatype": datatype, "shape": shape, "parameters": size}]}
    return json.dumps(head).encode().ljust(V2_HEAD_BYTES) + tensor


def _v2_file(jpeg: bytes) -> bytes:
    """A BYTES tensor: the file after its length."""
    return _v2_binary("BYTES", [1, 1], struct.pack("<I", len(jpeg)) + jpeg)


def _v2_bytes(jpeg: bytes) -> bytes:
    """A UINT8 tensor as long as the file: KServe's SDK reads a BYTES tensor as text."""
    return _v2_binary("UINT8", [len(jpeg)], jpeg)


V2_HEADERS = {"Inference-Header-Content-Length": str(V2_HEAD_BYTES)}


def _read_plain(answer: Any) -> tuple[int, float]:
    return answer["class_id"], max(answer["probabilities"].values())


def _read_first(answer: Any) -> tuple[int, float]:
    return _read_plain(answer["predictions"][0])


def _read_v2(answer: Any) -> tuple[int, float]:
    columns = {output["name"]: output["data"] for output in answer["outputs"]}
    return int(columns["class_id"][0]), max(columns["probabilities"])


def servers(cpus: int) -> tuple[Server, ...]:
    """All servers, with variants for that many CPUs; the first variant is used where none is tried."""
    each, shared = setting(cpus, 1), setting(1, cpus, 8, 1)
    batches = (setting(cpus, 1, 8), setting(cpus, 1, 8, 2))
    everybody = (
        Server(
            name="confgate",
            packages=(),
            command=_confgate,
            path="/v1/predict",
            content_type=JPEG,
            body=lambda jpeg: jpeg,
            read=_read_first,
            health="/v2/health/ready",
            note="as it comes, with its access log and both graphs",
        ),
        replace(
            one_thread.LITSERVE,
            command=_module("litserve_app"),
            content_type=JPEG,
            body=lambda jpeg: jpeg,
            read=_read_plain,
            variants=tuple(
                {**variant, "LITSERVE_FAST_QUEUE": fast} for variant in (each, *batches, shared) for fast in ("0", "1")
            ),
        ),
        replace(
            one_thread.TORCHSERVE,
            command=_torchserve,
            content_type=JPEG,
            read=_read_plain,
            variants=(each, setting(cpus, 1, 8, 1), setting(cpus, 1, 8, 5), shared),
        ),
        replace(
            one_thread.MLSERVER,
            command=_mlserver,
            read=_read_v2,
            variants=(
                {**each, "MLSERVER_IN_THREADS": "0"},
                {**setting(1, 1), "MLSERVER_IN_THREADS": "1"},
                {**setting(1, cpus), "MLSERVER_IN_THREADS": "1"},
                {**setting(cpus, 1, 8, 1), "MLSERVER_IN_THREADS": "0"},
            ),
        ),
        replace(
            one_thread.KSERVE,
            command=_module("kserve_app"),
            path="/v2/models/bench/infer",
            content_type="application/octet-stream",
            headers=V2_HEADERS,
            body=_v2_bytes,
            read=_read_v2,
            variants=(
                {**setting(1, 1), "KSERVE_IN_THREADS": "1"},
                {**each, "KSERVE_IN_THREADS": "0"},
                {**setting(1, cpus), "KSERVE_IN_THREADS": "1"},
            ),
        ),
        Server(
            name="BentoML",
            packages=("bentoml==1.4.39", *RUNTIME),
            command=_bentoml,
            path="/classify",
            content_type=JPEG,
            body=lambda jpeg: jpeg,
            read=_read_plain,
            health="/readyz",
            variants=(each, setting(1, 1), setting(1, cpus)),
            note="one by one: it batches lists in JSON or forms, not raw bodies",
        ),
        Server(
            name="Ray Serve",
            packages=("ray[serve]==2.60.0", *RUNTIME),
            command=_module("ray_app"),
            path="/",
            content_type=JPEG,
            body=lambda jpeg: jpeg,
            read=_read_plain,
            health="/-/healthz",
            variants=(each, *batches, shared),
        ),
        Server(
            name="Triton",
            packages=("nvidia-pytriton==0.7.0", *RUNTIME),
            command=_module("pytriton_app"),
            path="/v2/models/bench/infer",
            content_type="application/octet-stream",
            headers=V2_HEADERS,
            body=_v2_file,
            read=_read_v2,
            health="/v2/models/bench/ready",
            variants=(each, *batches, shared),
            note="through PyTriton",
        ),
    )
    return tuple(replace(one, settings=one.variants[0]) if one.variants else one for one in everybody)
