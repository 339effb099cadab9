"""More work than the model can do at once: shedding, deadlines, hang-ups, failures, drain."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.conftest import BLUE, GREEN, RED, solid
from tests.service.conftest import HeldService

PNG = {"Content-Type": "image/png"}


def post(service: HeldService, image: bytes = RED, **headers: str) -> httpx.Response:
    return service.client.post("/v1/predict", content=image, headers={**PNG, **headers})


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits for what no event tells: a counter inside the service."""
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it never came to that")


def hold(service: HeldService, pool: ThreadPoolExecutor) -> "Future[httpx.Response]":
    """One request that is being computed for as long as the test wants."""
    service.held.go_on.clear()
    first = pool.submit(post, service)
    service.held.wait_until_entered()
    return first


@pytest.mark.parametrize("held_service", [{"max_queue_images": 2, "max_images": 2}], indirect=True)
def test_a_full_queue_sheds(held_service: HeldService) -> None:
    """With the queue full a request gets 429 with Retry-After at once, and those that wait get their answers."""
    with ThreadPoolExecutor(4) as pool:
        first = hold(held_service, pool)
        waiting = [pool.submit(post, held_service, image) for image in (GREEN, BLUE)]
        wait_for(lambda: held_service.model.queues["forward"].images == 2)
        response = post(held_service)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1
        assert response.json()["type"] == "urn:confgate:problem:queue-full"
        held_service.held.go_on.set()
        labels = [job.result().json()["predictions"][0]["label"] for job in (first, *waiting)]
    assert labels == ["red", "green", "blue"]
    route = {"route": "/v1/predict"}
    assert held_service.metric("confgate_requests_total", **route, outcome="shed") == 1
    assert held_service.metric("confgate_requests_total", **route, outcome="ok") == 3


@pytest.mark.parametrize("held_service", [{"max_requests": 1}], indirect=True)
def test_too_many_requests_in_flight_are_shed(held_service: HeldService) -> None:
    """With as many requests in flight as are allowed the next gets 429 before its body is read."""
    with ThreadPoolExecutor(1) as pool:
        first = hold(held_service, pool)
        assert post(held_service).status_code == 429
        held_service.held.go_on.set()
        assert first.result().status_code == 200


def test_a_deadline_ends_a_request_and_nothing_else(held_service: HeldService) -> None:
    """A request past its deadline gets 504 while others go on waiting, and is never computed."""
    with ThreadPoolExecutor(2) as pool:
        first = hold(held_service, pool)
        response = post(held_service, GREEN, **{"X-Request-Timeout-Ms": "30"})
        assert response.status_code == 504
        assert "30 ms" in response.json()["detail"]
        patient = pool.submit(post, held_service, BLUE)
        wait_for(lambda: held_service.model.queues["forward"].images == 1)
        held_service.held.go_on.set()
        assert first.result().json()["predictions"][0]["label"] == "red"
        assert patient.result().json()["predictions"][0]["label"] == "blue"
    assert held_service.held.batches == [1, 1]
    assert held_service.metric("confgate_requests_total", route="/v1/predict", outcome="timeout") == 1


def test_a_client_that_hangs_up_is_dropped(held_service: HeldService) -> None:
    """Images of a client that closed its connection are not computed, and its neighbours are answered."""
    with ThreadPoolExecutor(2) as pool:
        first = hold(held_service, pool)
        queue = held_service.model.queues["forward"]
        connection = socket.create_connection(("127.0.0.1", held_service.port))
        fields = f"Host: localhost\r\nContent-Type: image/png\r\nContent-Length: {len(GREEN)}"
        head = f"POST /v1/predict HTTP/1.1\r\n{fields}\r\n\r\n"
        connection.sendall(head.encode() + GREEN)
        wait_for(lambda: queue.images == 1)
        connection.close()
        wait_for(lambda: queue.images == 0)
        patient = pool.submit(post, held_service, BLUE)
        wait_for(lambda: queue.images == 1)
        held_service.held.go_on.set()
        assert first.result().status_code == 200
        assert patient.result().json()["predictions"][0]["label"] == "blue"
    assert held_service.held.batches == [1, 1]
    assert held_service.metric("confgate_requests_total", route="/v1/predict", outcome="cancelled") == 1


def test_a_failing_batch_is_a_500_for_its_own_clients(held_service: HeldService) -> None:
    """When the model fails on a batch its clients get 500 with a request id, and the next batch is answered."""
    held_service.held.poison = 77
    response = post(held_service, solid((77, 0, 0)))
    assert response.status_code == 500
    assert response.json()["type"] == "urn:confgate:problem:inference-failed"
    assert response.json()["request_id"] == response.headers["x-request-id"]
    assert post(held_service).json()["predictions"][0]["label"] == "red"
    assert held_service.metric("confgate_requests_total", route="/v1/predict", outcome="error") == 1


def test_hundreds_of_clients_get_their_own_answers(held_service: HeldService) -> None:
    """Of 300 requests at once, with some hung up, late or poisoned, every other gets its own image's label."""
    held_service.held.poison = 77
    colours = {"red": RED, "green": GREEN, "blue": BLUE}

    def visit(i: int) -> bool:
        label = list(colours)[i % 3]
        if i % 10 == 3:
            return post(held_service, solid((77, 0, 0))).status_code == 500
        if i % 10 == 5:
            return post(held_service, RED, **{"X-Request-Timeout-Ms": "1"}).status_code in (200, 408, 504)
        if i % 10 == 7:
            with socket.create_connection(("127.0.0.1", held_service.port)) as connection:
                connection.sendall(
                    b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 75\r\n\r\n" + RED[:40]
                )
            return True
        response = post(held_service, colours[label])
        # A neighbour's poison is the whole batch's.
        return response.status_code == 500 or response.json()["predictions"][0]["label"] == label

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(visit, range(300)))
    assert post(held_service).status_code == 200
    assert held_service.model.queues["forward"].images == 0


def test_health_is_answered_while_the_model_is_busy(held_service: HeldService) -> None:
    """Live and ready are answered while a batch runs and others wait."""
    with ThreadPoolExecutor(1) as pool:
        first = hold(held_service, pool)
        assert held_service.client.get("/v2/health/live").status_code == 200
        assert held_service.client.get("/v2/health/ready").status_code == 200
        held_service.held.go_on.set()
        assert first.result().status_code == 200


def test_a_drain_answers_what_is_in_flight_and_refuses_the_rest(held_service: HeldService) -> None:
    """After SIGTERM requests in flight are answered, new ones and readiness get 503, live stays, then it ends."""
    with ThreadPoolExecutor(1) as pool:
        first = hold(held_service, pool)
        held_service.server.handle_exit(15, None)
        refused = post(held_service)
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:confgate:problem:not-ready"
        assert held_service.client.get("/v2/health/ready").status_code == 503
        assert held_service.client.get("/v2/health/live").status_code == 200
        held_service.held.go_on.set()
        assert first.result().json()["predictions"][0]["label"] == "red"
    held_service.thread.join(60)
    assert not held_service.thread.is_alive()


@pytest.mark.parametrize("held_service", [{"drain_seconds": 0.0}], indirect=True)
def test_a_drain_does_not_wait_for_ever(held_service: HeldService) -> None:
    """When the drain time is up the server stops, and a request that is still being computed gets 503."""
    with ThreadPoolExecutor(1) as pool:
        first = hold(held_service, pool)
        held_service.server.handle_exit(15, None)
        response = first.result(60)
        held_service.held.go_on.set()
        assert response.status_code == 503
        assert response.json()["type"] == "urn:confgate:problem:not-ready"
        assert response.headers["connection"] == "close"


def test_a_mistake_of_ours_is_a_500_with_a_request_id(
    held_service: HeldService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody foresaw, in a decoder or in a route, is a problem with a request id, and the service goes on."""

    def stumble(*_: object) -> None:
        raise KeyError("nobody thought of this")

    for place, kind in (
        ("service.serving.predictor.decode", "inference-failed"),
        ("service.web.v1.predict.answer", "internal"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, stumble)
            response = post(held_service)
        assert response.status_code == 500
        assert response.json()["type"] == f"urn:confgate:problem:{kind}"
        assert response.json()["request_id"] == response.headers["x-request-id"]
        assert "nobody thought" not in response.text
    assert post(held_service).status_code == 200
    assert held_service.metric("confgate_requests_total", route="/v1/predict", outcome="error") == 2
