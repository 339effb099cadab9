"""The order in which images are decoded."""

import threading

from service.serving.decode_pool import SINGLES_IN_A_ROW, DecodePool


def order_of(jobs: list[tuple[str, bool]]) -> list[str]:
    """What one thread does first, second, …, if all these jobs wait for it."""
    pool, held, order = DecodePool(1), threading.Event(), list[str]()
    pool.submit(held.wait)
    for name, bulk in jobs:
        pool.submit(order.append, name, bulk=bulk)
    held.set()
    pool.shutdown()
    return order


def test_an_image_alone_overtakes_those_of_requests_with_many():
    """64 images of another request that wait for a thread do not delay it."""
    assert order_of([*((f"many {i}", True) for i in range(64)), ("alone", False)])[0] == "alone"


def test_requests_with_many_images_are_not_shut_out():
    """However many images come alone, one in five is of a request with many."""
    order = order_of([*((f"alone {i}", False) for i in range(20)), *((f"many {i}", True) for i in range(3))])
    assert len(order) == 23
    assert [name.split()[0] for name in order].index("many") <= SINGLES_IN_A_ROW


def test_a_job_that_fails_does_not_end_its_thread():
    """The next job is done."""
    pool, done = DecodePool(1), threading.Event()
    pool.submit(lambda: 1 / 0)
    pool.submit(done.set)
    assert done.wait(5)
    pool.shutdown()
