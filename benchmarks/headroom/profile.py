"""Where the CPU time of a service goes: py-spy's stacks, weighted by the CPU time of each thread.

py-spy counts a thread that could run but has no CPU as one that runs, and here many threads share one CPU. So its
samples only divide the CPU time that Linux counted for their thread.
"""

import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.serving.load import LoadError
from benchmarks.serving.processes import TICKS

RATE = 250  # samples a second
LOOP = "event loop, sockets, waiting for the GIL"
# The innermost frame that is listed here says what a sample is counted as: file, functions (none: all), part.
PARTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("uvicorn/protocols/http/httptools_impl.py", ("send",), "HTTP: answer"),
    ("uvicorn/protocols/http/httptools_impl.py", ("on_response_complete",), "HTTP: answer"),
    ("service/web/client_connection.py", ("on_response_complete", "_may_be_idle"), "HTTP: answer"),
    ("service/web/transport.py", (), "HTTP: answer"),
    ("uvicorn/protocols/http/httptools_impl.py", ("receive",), "HTTP: body"),
    ("service/web/uvicorn_protocol.py", ("on_body", "on_message_complete"), "HTTP: body"),
    ("uvicorn/protocols/http/httptools_impl.py", (), "HTTP: head"),
    ("service/web/uvicorn_protocol.py", (), "HTTP: head"),
    ("service/web/request_context.py", ("send_identified",), "HTTP: answer"),
    ("service/web/request_context.py", (), "id, keys, origins"),
    ("service/web/auth.py", (), "id, keys, origins"),
    ("service/web/access_log.py", (), "log"),
    ("service/logs.py", (), "log"),
    ("starlette/routing.py", (), "routing"),
    ("starlette/responses.py", (), "answer as JSON"),
    ("fastapi/", (), "routing"),
    ("starlette/middleware/", (), "routing"),
    ("service/web/bodies.py", (), "read the request"),
    ("service/web/v2/request.py", (), "read the request"),
    ("service/web/v2/response.py", (), "answer as JSON"),
    ("service/web/answers.py", (), "HTTP: answer"),
    ("service/web/v1/predict.py", ("read_query",), "read the request"),
    ("service/web/v1/predict.py", (), "answer as JSON"),
    ("service/web/v2/infer.py", (), "read the request"),
    ("service/web/", (), "limits and deadlines"),
    ("service/serving/predictor.py", ("_decode", "_decode_next", "_decode_if_idle"), "decode"),
    ("service/serving/decode_pool.py", (), "decode"),
    ("service/model/images.py", (), "decode"),
    ("service/model/png.py", (), "decode"),
    ("service/model/headers.py", (), "decode"),
    ("service/serving/predictor.py", ("_count",), "metrics"),
    ("service/serving/metrics.py", (), "metrics"),
    ("service/serving/score_metrics.py", (), "metrics"),
    ("service/serving/predictor.py", (), "queue and batch"),
    ("service/serving/batcher.py", (), "queue and batch"),
    ("service/model/", (), "gate"),
    ("instant_service.py", ("run",), "queue and batch"),
)
# Innermost frames of threads that wait; py-spy does not always recognise them as idle.
WAITING = (("threading.py", "wait"), ("batcher.py", "_work"), ("decode_pool.py", "_run"), ("thread.py", "_worker"))
FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^()]+?)(?::\d+)?\)$")


def part_of(stack: list[str]) -> str | None:
    """What a stack is counted as, None if it waits; its frames, outermost first, are as in py-spy's raw format."""
    if any(f"{name} (" in stack[-1] and f"/{file}:" in stack[-1] for file, name in WAITING):
        return None
    for frame in reversed(stack):
        found = FRAME.match(frame)
        if found is None:
            continue
        for file, functions, part in PARTS:
            # py-spy shortens paths to what differs between modules of equal names.
            if file in found["file"] and (not functions or found["function"] in functions):
                return part
    return LOOP


def shares_of(raw: str, cpu_of_threads: Mapping[int, float]) -> dict[str, float]:
    """Each part's share of the CPU time, from py-spy's raw output and the CPU seconds of each thread by its id."""
    samples: dict[int, Counter[str]] = {}
    for line in raw.splitlines():
        text, _, count = line.rpartition(" ")
        stack = text.split(";")
        thread = next((int(found[1]) for frame in stack if (found := re.match(r"thread \((\d+)\)", frame))), 0)
        counted_as = part_of(stack)
        if counted_as is not None:
            samples.setdefault(thread, Counter())[counted_as] += int(count)
    parts: dict[str, float] = {}
    total = sum(cpu_of_threads.values())
    for number, seconds in cpu_of_threads.items():
        counted = samples.get(number, Counter({LOOP: 1}))
        for part, sampled in counted.items():
            parts[part] = parts.get(part, 0.0) + seconds / total * sampled / counted.total()
    return dict(sorted(parts.items(), key=lambda item: -item[1]))


def profile(process: int, seconds: int, folder: Path, load: Callable[[], object]) -> dict[str, float]:
    """Shares of the CPU time of a process under the load that `load` makes, which takes longer than `seconds`."""
    program = shutil.which("py-spy")
    if program is None:
        raise LoadError("py-spy is not installed, and a profile needs it: pip install py-spy")
    target = folder / "stacks.txt"
    loading = threading.Thread(target=load)
    loading.start()
    before = _thread_seconds(process)
    command = [program, "record", "--pid", str(process), "--duration", str(seconds), "--rate", str(RATE)]
    options = ["--nonblocking", "--threads", "--full-filenames", "--format", "raw", "--output", str(target)]
    outcome = subprocess.run([*command, *options], capture_output=True, text=True)
    after = _thread_seconds(process)
    loading.join()
    if outcome.returncode:
        raise LoadError(f"py-spy failed: {outcome.stderr[-500:]}")
    return shares_of(target.read_text(), {thread: after[thread] - before.get(thread, 0) for thread in after})


def _thread_seconds(process: int) -> dict[int, float]:
    seconds = {}
    for task in Path(f"/proc/{process}/task").iterdir():
        fields = (task / "stat").read_text().rpartition(") ")[2].split()
        seconds[int(task.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    return seconds
