"""How long the event loop is blocked while a thread loads a bundle: python -m benchmarks.loading_stall

A task that sleeps 1 ms at a time records its longest gap: while the thread sleeps, while it hashes the files, and while
it opens and warms up each graph. If opening a session held the GIL, the gap would be as long as the opening. The
control computes for a second without the GIL: its gap is the effect of a busy CPU alone.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from service.model.bundle import load_bundle
from service.model.session import open_session

BUNDLE = Path("models/cifar10/1")
ROUNDS = 5


async def watch_gaps(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds that the work takes in a thread, and the longest gap of the event loop in that time."""
    longest, task = 0.0, asyncio.create_task(asyncio.to_thread(work))
    started = last = time.perf_counter()
    while not task.done():
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    await task
    return time.perf_counter() - started, longest


async def main() -> None:
    bundle, memory = load_bundle(BUNDLE), bytes(50_000_000)
    steps: dict[str, Callable[[], object]] = {
        "nothing": lambda: time.sleep(0.5),
        "control": lambda: [hashlib.sha256(memory) for _ in range(20)],
        "hashing": lambda: load_bundle(BUNDLE),
        "forward": lambda: open_session(bundle, "forward", "cpu"),
        "perturbed": lambda: open_session(bundle, "perturbed", "cpu"),
    }
    for name, work in steps.items():
        results = [await watch_gaps(work) for _ in range(ROUNDS)]
        shown = ", ".join(f"{gap * 1000:.0f} of {seconds * 1000:.0f}" for seconds, gap in results)
        print(f"{name:10} longest gap, in ms of the time it took: {shown}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
