"""ONNX Runtime fails on a batch: that batch is answered with an error, and nothing else is."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.conftest import RED, Service, make_bundle, solid
from tests.faults.graphs import failing_on_bright_images
from tests.faults.processes import client_of, label, post

DARK_RED = solid((150, 0, 0))


def test_a_batch_that_onnx_runtime_fails_on_is_500_and_the_next_is_answered(models: Path) -> None:
    """Its requests get a problem, the log has ONNX Runtime's reason as JSON and nothing that it prints itself, and the
    requests after it get right answers."""
    make_bundle(models, perturbed=False).replace_graph("forward", failing_on_bright_images())
    service = Service(models).wait_until_serving()
    with client_of(service) as client, ThreadPoolExecutor(8) as pool:
        assert label(client, DARK_RED) == "red"
        failed = post(client, RED)
        assert failed.status_code == 500
        assert failed.json()["type"] == "urn:confgate:problem:inference-failed"
        assert label(client, DARK_RED) == "red"
        # A failed batch takes along what shares it.
        answers = list(pool.map(lambda i: post(client, RED if i % 4 == 0 else DARK_RED), range(64)))
        assert {answer.status_code for answer in answers[::4]} == {500}
        assert {answer.status_code for answer in answers} <= {200, 500}
        assert label(client, DARK_RED) == "red"
    assert service.stop() == 0
    reasons = [line["error"] for line in service.log() if line["message"] == "a batch failed"]
    assert reasons
    assert all("out of data bounds" in reason for reason in reasons)
