"""Versions that come and go under load: no request fails, and a bad bundle changes nothing."""

import shutil
import socket
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import BLUE, GREEN, GREY, RED, graph_bytes, make_bundle
from tests.service.conftest import HeldService
from tests.service.serving.reloading import SlowOpening, change, index, is_told, threads_of, version_of
from tests.service.serving.test_load import hold, post, wait_for


def test_a_new_version_is_served_beside_the_old(held_service: HeldService, models: Path) -> None:
    """Load brings in what is new in the folder; the highest version becomes the default, the old stays reachable."""
    make_bundle(models, version=2)
    assert index(held_service) == {("colours", "1"): ("READY", ""), ("colours", "2"): ("UNAVAILABLE", "not loaded")}
    assert index(held_service, ready=True) == {("colours", "1"): ("READY", "")}
    assert change(held_service, "load").status_code == 200
    assert (version_of(held_service), version_of(held_service, version=1)) == (2, 1)
    assert index(held_service)["colours", "2"] == ("READY", "")
    assert held_service.metric("confgate_model_ready", version="2") == 1
    assert held_service.metric("confgate_requests_total", version="2", route="/v1/predict", outcome="ok") == 1


def test_rolling_over_fails_no_request(held_service: HeldService, models: Path) -> None:
    """While clients of both protocols ask without pause, versions are replaced four times and none of them notices."""
    stop, outcomes = threading.Event(), []
    tensor = {"name": "image", "shape": [1, 8, 8, 3], "datatype": "UINT8", "data": [255, 0, 0] * 64}

    def ask(i: int) -> None:
        with httpx.Client(base_url=held_service.url, timeout=60, verify=False, trust_env=False) as client:
            while not stop.is_set():
                if i % 2:
                    answer = client.post("/v1/predict", content=RED)
                    told = answer.json().get("version"), answer.json().get("predictions", [{}])[0].get("label")
                else:
                    answer = client.post("/v2/models/colours/infer", json={"inputs": [tensor]})
                    body = answer.json()
                    told = int(body.get("model_version", 0)), body.get("outputs", [{}] * 2)[1].get("data", [None])[0]
                outcomes.append((answer.status_code, *told))

    with ThreadPoolExecutor(16) as pool:
        clients = [pool.submit(ask, i) for i in range(16)]
        for version in (2, 3, 4, 5):
            seen = len(outcomes)
            make_bundle(models, version=version)
            shutil.rmtree(models / "colours" / str(version - 1))
            assert change(held_service, "load").status_code == 200
            assert held_service.client.get("/v2/health/ready").status_code == 200
            # Everybody has asked the new one before the next comes.
            wait_for(lambda seen=seen, version=version: {version} == {told for _, told, _ in outcomes[seen:][-16:]})
        stop.set()
        for client in clients:
            client.result()
    assert {(status, label) for status, _, label in outcomes} == {(200, "red")}
    assert {version for _, version, _ in outcomes} == {1, 2, 3, 4, 5}
    # All that was there for the versions before goes: series, threads.
    wait_for(lambda: not any(is_told(held_service, str(version)) or threads_of(version) for version in (1, 2, 3, 4)))
    assert is_told(held_service, "5")


def test_a_bad_bundle_is_refused_and_the_old_one_goes_on(
    held_service: HeldService, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A graph that is not the model's is refused with its reason in answer, log, metric and index; mended, it loads."""
    bad = make_bundle(models, version=2)
    good = (bad.folder / "model.onnx").read_bytes()
    bad.replace_graph("forward", graph_bytes(side=9))
    answer = change(held_service, "load")
    assert answer.status_code == 409
    reason = "input image: found tensor(uint8) [N, 9, 9, 3], expected tensor(uint8) [N, 8, 8, 3]"
    assert reason in answer.json()["error"]
    assert "what was served before goes on" in answer.json()["error"]
    (record,) = [record for record in caplog.records if record.message == "a bundle was refused"]
    assert reason in record.reason
    failures = held_service.app.state.metrics.registry
    assert failures.get_sample_value("confgate_model_load_failures_total", {"model": "colours"}) == 1
    assert reason in index(held_service)["colours", "2"][1]
    assert index(held_service)["colours", "1"][0] == "READY"
    assert version_of(held_service) == 1
    assert not is_told(held_service, "2")
    bad.replace_graph("forward", good)
    assert change(held_service, "load").status_code == 200
    assert version_of(held_service) == 2
    assert index(held_service)["colours", "2"] == ("READY", "")


@pytest.mark.parametrize("spoil", ["hash", "name", "schema", "deep", "missing", "latest", "unreadable graph"])
def test_every_kind_of_bad_bundle_is_refused(held_service: HeldService, models: Path, spoil: str) -> None:
    """Wrong hash, name, schema, nesting, a missing file, a folder that is no version: 409 each, and nothing changes."""
    bad = make_bundle(models, version=2)
    manifest = bad.folder / "bundle.json"
    if spoil == "hash":
        graph = bad.folder / "model.onnx"
        graph.write_bytes(graph.read_bytes()[:-1] + b"\0")
    elif spoil == "name":
        bad.rewrite(lambda raw: raw.update(name="other"))
    elif spoil == "schema":
        bad.rewrite(lambda raw: raw.update(schema_version=2))
    elif spoil == "deep":
        manifest.write_text("[" * 100_000)
    elif spoil == "missing":
        (bad.folder / "perturbed.onnx").unlink()
    elif spoil == "latest":
        bad.folder.rename(bad.folder.with_name("latest"))
    else:
        bad.replace_graph("forward", b"no graph at all")
    answer = change(held_service, "load")
    assert answer.status_code == 409, answer.text
    assert answer.json()["error"]
    assert version_of(held_service) == 1


def test_files_that_change_while_they_are_loaded_change_nothing(held_service: HeldService, models: Path) -> None:
    """What was verified is what is opened: a graph that changes in between is not read again."""
    slow = SlowOpening(held_service)
    new = make_bundle(models, version=2)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(change, held_service, "load")
        assert slow.entered.acquire(timeout=60)
        (new.folder / "model.onnx").write_bytes(b"changed")
        slow.go_on.set()
        assert loading.result().status_code == 200, loading.result().text
    assert version_of(held_service) == 2


def test_waiting_images_are_answered_by_the_version_they_came_for(held_service: HeldService, models: Path) -> None:
    """A replaced version computes all that waits in its queue, and goes only then, with its memory."""
    old, queue = held_service.held, weakref.ref(held_service.model.queues["forward"])
    with ThreadPoolExecutor(4) as pool:
        first = hold(held_service, pool)
        waiting = [pool.submit(post, held_service, image) for image in (GREEN, BLUE)]
        wait_for(lambda: held_service.model.queues["forward"].images == 2)
        make_bundle(models, version=2)
        shutil.rmtree(models / "colours" / "1")
        assert change(held_service, "load").status_code == 200
        assert version_of(held_service) == 2
        assert held_service.client.post("/v1/predict?version=1", content=RED).status_code == 404
        assert is_told(held_service, "1")
        old.go_on.set()
        answers = [job.result().json() for job in (first, *waiting)]
    assert [answer["version"] for answer in answers] == [1, 1, 1]
    assert [answer["predictions"][0]["label"] for answer in answers] == ["red", "green", "blue"]
    wait_for(lambda: not is_told(held_service, "1") and not threads_of(1))
    wait_for(lambda: queue() is None)


def test_a_body_that_arrives_after_the_swap_is_answered(held_service: HeldService, models: Path) -> None:
    """A request that found the old version and is still being sent when it is replaced is answered by it."""
    leases = held_service.model.leases
    with socket.create_connection(("127.0.0.1", held_service.port), timeout=60) as connection:
        head = (
            f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(RED)}\r\n\r\n"
        )
        connection.sendall(head.encode() + RED[:20])
        wait_for(lambda: leases._held == 1)
        make_bundle(models, version=2)
        shutil.rmtree(models / "colours" / "1")
        assert change(held_service, "load").status_code == 200
        assert version_of(held_service) == 2
        connection.sendall(RED[20:])
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"version":1' in answer
    wait_for(lambda: not threads_of(1))


def test_a_load_holds_nobody_up(held_service: HeldService, models: Path) -> None:
    """While a graph is being opened, health, index and requests are answered."""
    slow = SlowOpening(held_service)
    make_bundle(models, version=2)
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(change, held_service, "load")
        assert slow.entered.acquire(timeout=60)
        assert held_service.client.get("/v2/health/live").status_code == 200
        assert held_service.client.get("/v2/health/ready").status_code == 200
        assert index(held_service)["colours", "2"][0] == "UNAVAILABLE"
        assert version_of(held_service) == 1
        slow.go_on.set()
        assert loading.result().status_code == 200
    assert version_of(held_service) == 2


def test_a_version_that_changed_in_place_is_swapped(held_service: HeldService, models: Path) -> None:
    """The same version with other content takes the place of the old one; without any change nothing is opened."""
    slow = SlowOpening(held_service)
    slow.go_on.set()
    assert change(held_service, "load").status_code == 200
    assert slow.opened == 0
    shutil.rmtree(models / "colours")

    def other(raw: dict[str, Any]) -> None:
        raw["scores"]["confidence"]["policies"]["strict"] = raw["scores"]["confidence"]["policies"].pop("tpr95")
        raw["scores"]["confidence"]["policies"]["misclassified"]["threshold"] = 5.0

    make_bundle(models, change=other)
    assert post(held_service, GREY).status_code == 200
    assert change(held_service, "load").status_code == 200
    assert slow.opened == 2
    policy = {"score": "confidence", "policy": "misclassified"}
    assert held_service.metric("confgate_policy_threshold", **policy) == pytest.approx(0.9933, abs=1e-4)
    policies = held_service.client.get("/v1/models/colours").json()["versions"][0]["scores"]["confidence"]["policies"]
    assert set(policies) == {"misclassified", "strict"}
    told = [
        line for line in held_service.client.get("/metrics").text.splitlines() if "confgate_policy_threshold{" in line
    ]
    assert not [line for line in told if 'score="confidence"' in line and "tpr95" in line]
    wait_for(lambda: held_service.metric("confgate_queue_images", graph="forward") == 0)
    assert version_of(held_service) == 1


def test_sigterm_while_a_model_is_loaded(held_service: HeldService, models: Path) -> None:
    """A load that a stop interrupts is told so and changes nothing; requests in flight are answered, and it ends."""
    slow = SlowOpening(held_service)
    make_bundle(models, version=2)
    with ThreadPoolExecutor(2) as pool:
        first: Future[httpx.Response] = hold(held_service, pool)
        loading = pool.submit(change, held_service, "load")
        assert slow.entered.acquire(timeout=60)
        held_service.server.handle_exit(15, None)
        slow.go_on.set()
        held_service.held.go_on.set()
        assert loading.result().status_code == 503
        assert "shutting down" in loading.result().json()["error"]
        assert first.result().status_code == 200
    held_service.thread.join(60)
    assert not held_service.thread.is_alive()
    assert slow.opened == 1  # the second graph was not even begun


def test_a_stop_with_an_old_version_still_busy(held_service: HeldService, models: Path) -> None:
    """A version that is on its way out when the service stops ends with it."""
    old = held_service.held
    with ThreadPoolExecutor(1) as pool:
        first = hold(held_service, pool)
        make_bundle(models, version=2)
        shutil.rmtree(models / "colours" / "1")
        assert change(held_service, "load").status_code == 200
        held_service.server.handle_exit(15, None)
        old.go_on.set()
        assert first.result().json()["version"] == 1
    held_service.thread.join(60)
    assert not held_service.thread.is_alive()
    assert not threads_of(1) + threads_of(2)
