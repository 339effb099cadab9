"""Hundreds of clients at once: what goes wrong for some of them is nobody else's business."""

import asyncio
import json
from collections.abc import Callable

import pytest

from tests.conftest import BLUE, GREEN, RED, solid
from tests.service.conftest import HeldService
from tests.service.serving.test_load import wait_for

IMAGES = {"red": RED, "green": GREEN, "blue": BLUE}
LABELS = tuple(IMAGES)
POISON = solid((77, 0, 0))
CROWD = {"max_batch": 16, "max_queue_images": 1000}

Answer = tuple[int, dict]


async def ask(port: int, image: bytes, headers: str = "") -> Answer:
    """One client on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: image/png\r\n{headers}"
    writer.write(f"{head}Content-Length: {len(image)}\r\n\r\n".encode() + image)
    answer = await reader.read()
    writer.close()
    first, _, body = answer.partition(b"\r\n\r\n")
    return int(first.split(b" ", 2)[1]), json.loads(body)


async def leave(port: int, image: bytes, queued: asyncio.Event) -> None:
    """A client that sends a whole request, waits until it is queued, and hangs up."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(image)}\r\n\r\n".encode() + image
    )
    await queued.wait()
    writer.close()


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_for, condition)


@pytest.mark.parametrize("held_service", [CROWD], indirect=True)
def test_clients_that_leave_or_come_too_late_disturb_nobody(held_service: HeldService) -> None:
    """Of 401 clients 100 hang up and 100 pass their deadline while they wait: the others each get their own label,
    and no image of the 200 is ever computed."""
    queue, port = held_service.model.queues["forward"], held_service.port

    async def crowd() -> list[Answer]:
        held_service.held.go_on.clear()
        first = asyncio.create_task(ask(port, RED))
        await asyncio.to_thread(held_service.held.wait_until_entered)
        queued = asyncio.Event()
        patient, leaving = [], []
        for number in range(200):
            patient.append(asyncio.create_task(ask(port, IMAGES[LABELS[number % 3]])))
            if number % 2:
                leaving.append(asyncio.create_task(leave(port, GREEN, queued)))
        await until(lambda: queue.images == 300)
        late = await asyncio.gather(*(ask(port, RED, "X-Request-Timeout-Ms: 300\r\n") for _ in range(100)))
        assert {status for status, _ in late} <= {504, 408}  # 408 where not even the body was read in that time
        queued.set()
        await asyncio.gather(*leaving)
        await until(lambda: queue.images == 200)
        held_service.held.go_on.set()
        assert (await first)[0] == 200
        return await asyncio.gather(*patient)

    answers = asyncio.run(crowd())
    assert [status for status, _ in answers] == [200] * 200
    assert [body["predictions"][0]["label"] for _, body in answers] == [LABELS[n % 3] for n in range(200)]
    assert sum(held_service.held.batches) == 1 + 200
    assert max(held_service.held.batches) == 16


@pytest.mark.parametrize("held_service", [CROWD], indirect=True)
def test_a_failing_batch_leaves_the_other_batches_right(held_service: HeldService) -> None:
    """Of 301 clients one sends what makes its batch fail: the at most 16 of that batch get 500, all others their own
    label."""
    held_service.held.poison = 77
    queue, port = held_service.model.queues["forward"], held_service.port

    async def crowd() -> list[Answer]:
        held_service.held.go_on.clear()
        first = asyncio.create_task(ask(port, RED))
        await asyncio.to_thread(held_service.held.wait_until_entered)
        images = [POISON if number == 150 else IMAGES[LABELS[number % 3]] for number in range(300)]
        others = [asyncio.create_task(ask(port, image)) for image in images]
        await until(lambda: queue.images == 300)
        held_service.held.go_on.set()
        assert (await first)[0] == 200
        return await asyncio.gather(*others)

    answers = asyncio.run(crowd())
    failed = [number for number, (status, _) in enumerate(answers) if status == 500]
    assert 150 in failed
    assert len(failed) <= 16
    for number, (status, body) in enumerate(answers):
        if number not in failed:
            assert (status, body["predictions"][0]["label"]) == (200, LABELS[number % 3])
    assert held_service.metric("confgate_requests_total", route="/v1/predict", outcome="error") == len(failed)
