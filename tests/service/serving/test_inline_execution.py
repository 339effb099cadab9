"""Requests that come one at a time are answered by the event loop's own thread, and nobody notices but the clock."""

import math
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx

from service.serving.inline_execution import LIMIT_SECONDS, PENALTY, STREAK, InlineExecution
from tests.conftest import BLUE, GREEN, RED, solid
from tests.service.conftest import HeldService
from tests.service.serving.test_load import wait_for

POISON = solid((77, 0, 0))
QUICK = LIMIT_SECONDS / 5
ONE, OTHER = ("127.0.0.1", 50_001), ("127.0.0.1", 50_002)


def begin(inline_execution: InlineExecution, requests: int, client: object = ONE) -> None:
    for _ in range(requests):
        inline_execution.request_begins(in_flight=1, client=client)


def test_only_a_long_row_of_lonely_requests_for_a_quick_model_is_taken() -> None:
    """Before the row is long, after company, and where an image takes long, the threads do the work."""
    inline_execution = InlineExecution()
    begin(inline_execution, STREAK + 1)
    assert not inline_execution.allows(QUICK)
    begin(inline_execution, 1)
    assert inline_execution.allows(QUICK)
    assert not inline_execution.allows(LIMIT_SECONDS)
    inline_execution.request_begins(in_flight=2, client=ONE)
    assert not inline_execution.allows(QUICK)
    begin(inline_execution, STREAK)
    assert not inline_execution.allows(QUICK)


def test_a_row_is_of_one_connection() -> None:
    """Clients that are answered in turn, and those with no address, never make a row."""
    inline_execution = InlineExecution()
    for _ in range(2 * STREAK):
        begin(inline_execution, 1, ONE)
        begin(inline_execution, 1, OTHER)
    assert not inline_execution.allows(QUICK)
    begin(inline_execution, 2 * STREAK, None)
    assert not inline_execution.allows(QUICK)


def test_one_that_held_up_the_loop_sends_the_next_ones_to_the_threads() -> None:
    """An image that was slow after all costs its successors the short way for PENALTY requests, and a row again."""
    inline_execution = InlineExecution()
    begin(inline_execution, 1)
    inline_execution.took(3 * LIMIT_SECONDS)
    begin(inline_execution, PENALTY + STREAK)
    assert not inline_execution.allows(QUICK)
    begin(inline_execution, 1)
    assert inline_execution.allows(QUICK)


def test_company_does_not_shorten_the_penalty() -> None:
    """Requests in flight together do not bring the short way back sooner."""
    inline_execution = InlineExecution()
    inline_execution.took(3 * LIMIT_SECONDS)
    inline_execution.request_begins(in_flight=2, client=ONE)
    begin(inline_execution, 2 * STREAK)
    assert not inline_execution.allows(QUICK)


def settle_in(service: HeldService) -> None:
    """So many requests, one after the other, that the row is long, on a machine that may be as slow as it likes."""
    service.app.state.lifecycle.inline_execution.limit_seconds = math.inf
    for _ in range(STREAK + 3):
        assert service.client.post("/v1/predict", content=RED).json()["predictions"][0]["label"] == "red"
    assert service.held.threads[0].startswith("colours")
    assert service.held.threads[-1] == service.thread.name


def test_lonely_requests_end_up_in_the_loops_thread_with_the_same_answers(held_service: HeldService) -> None:
    """The first of many requests runs in the inference thread, the last in the event loop's, and all say the same."""
    first = held_service.client.post("/v1/predict", content=GREEN).json()["predictions"]
    settle_in(held_service)
    assert held_service.client.post("/v1/predict", content=GREEN).json()["predictions"] == first
    assert held_service.held.threads[-1] == held_service.thread.name
    assert held_service.metric("confgate_batch_size_count", graph="forward") == len(held_service.held.batches)


def test_bad_images_and_failing_batches_are_answered_on_the_short_way_too(held_service: HeldService) -> None:
    """There, bytes that are no image get 422 and a batch that fails 500, and the next request its answer."""
    settle_in(held_service)
    held_service.held.poison = 77
    assert held_service.client.post("/v1/predict", content=b"not an image").status_code == 422
    assert held_service.client.post("/v1/predict", content=POISON).status_code == 500
    assert held_service.held.threads[-1] == held_service.thread.name
    assert held_service.client.post("/v1/predict", content=BLUE).json()["predictions"][0]["label"] == "blue"


def test_company_brings_the_threads_back(held_service: HeldService) -> None:
    """With another request in flight, if only one whose body is still to come, the loop stays free for others while
    the model computes."""
    settle_in(held_service)
    with socket.create_connection(("127.0.0.1", held_service.port)) as company:
        company.sendall(b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        wait_for(lambda: held_service.app.state.lifecycle.in_flight == 1)
        held_service.held.go_on.clear()
        computed = len(held_service.held.threads)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(held_service.client.post, "/v1/predict", content=BLUE)
            wait_for(lambda: len(held_service.held.threads) > computed)
            assert httpx.get(f"{held_service.url}/v2/health/live", timeout=30).status_code == 200
            held_service.held.go_on.set()
            assert answer.result().json()["predictions"][0]["label"] == "blue"
    assert held_service.held.threads[-1].startswith("colours")


def test_clients_that_wait_in_their_sockets_are_company(held_service: HeldService) -> None:
    """After a row of lonely requests, several clients at once are answered by the threads: none of them by the loop,
    behind which the others would wait unseen.
    """
    settle_in(held_service)
    computed = len(held_service.held.threads)

    def ask(_client: int) -> None:
        with httpx.Client(base_url=held_service.url, timeout=60) as client:
            for _ in range(STREAK // 2):
                assert client.post("/v1/predict", content=GREEN).status_code == 200

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(6)))
    assert all(name.startswith("colours") for name in held_service.held.threads[computed:])
