"""`make headroom` in small: the service it measures answers as it should, and its profile adds up."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.headroom.profile import LOOP, part_of, shares_of
from benchmarks.headroom.requests import SMALL, all_requests, tensor_request
from benchmarks.headroom.services import CPUs, started
from tests.conftest import ROOT

MAIN = "thread (7): MainThread;run (asyncio/runners.py:118)"
INFERENCE = "thread (8): instant-1-forward;_run (threading.py:1)"


def test_the_measured_service_answers_every_request_and_each_image_by_its_first_byte(tmp_path: Path) -> None:
    """What is measured is the whole way of a request: order, number and values of the answers are right."""
    cpu = min(os.sched_getaffinity(0))
    with started(ROOT, SMALL, CPUs(cpu, cpu), tmp_path) as service:
        for request in (request for request in all_requests() if request.side == SMALL):
            answer = json.loads(service.answer(request))
            found = answer["predictions"] if "predictions" in answer else answer["outputs"][0]["data"]
            assert len(found) == request.images
        request = tensor_request(SMALL, 8)
        head = int(request.headers["Inference-Header-Content-Length"])
        first_bytes = np.frombuffer(request.body[head:], np.uint8).reshape(8, -1)[:, 0].tolist()
        outputs = {output["name"]: output["data"] for output in json.loads(service.answer(request))["outputs"]}
    assert len(set(first_bytes)) > 1
    of_byte = dict(zip(first_bytes, outputs["certainty"], strict=True))
    assert [of_byte[byte] for byte in first_bytes] == outputs["certainty"]
    assert len(set(outputs["certainty"])) == len(set(first_bytes))


@pytest.mark.parametrize(
    ("stack", "part"),
    [
        (f"{MAIN};predict (service/serving/predictor.py:50);add (service/serving/score_metrics.py:50)", "metrics"),
        (f"{MAIN};data_received (service/web/uvicorn_protocol.py:90)", "HTTP: head"),
        (f"{MAIN};on_body (service/web/uvicorn_protocol.py:170)", "HTTP: body"),
        (f"{INFERENCE};__call__ (service/model/gate.py:112);softmax (service/model/scores.py:53)", "gate"),
        (f"{INFERENCE};__call__ (service/model/gate.py:112);errstate (numpy/_core/_ufunc_config.py:1)", "gate"),
        (f"{INFERENCE};_work (service/serving/batcher.py:201)", None),
        (MAIN, LOOP),
    ],
)
def test_a_stack_counts_as_its_innermost_known_part(stack: str, part: str | None) -> None:
    """Code of numpy counts as the part that called it; a thread that waits counts as nothing."""
    assert part_of(stack.split(";")) == part


def test_shares_follow_the_cpu_time_of_threads_and_not_their_samples() -> None:
    """Of 10 CPU seconds the main thread has 8, a quarter of which are metrics, whatever else was sampled."""
    add, softmax = "add (service/serving/score_metrics.py:50)", "softmax (service/model/scores.py:53)"
    lines = [
        f"{MAIN} 30",
        f"{MAIN};{add} 10",
        f"{INFERENCE};{softmax} 400",
        f"{INFERENCE};_work (service/serving/batcher.py:201) 500",
    ]
    assert shares_of("\n".join(lines), {7: 8.0, 8: 2.0}) == pytest.approx({LOOP: 0.6, "metrics": 0.2, "gate": 0.2})
