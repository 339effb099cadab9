"""Memory in flight, and how much there may be: of request bodies, and of images while they are decoded."""

from service.errors import MemoryBudgetExceeded
from service.memory import usable_memory

MEGABYTE = 1_000_000
# A request with no more than this is not refused for lack of room: others' large bodies must not shut it out.
SMALL_BODY = 262_144
# How often a thread that waits for room looks whether its request is over.
LOOK_SECONDS = 0.05


def bodies_megabytes(setting: int) -> int:
    """The setting, or an eighth of the memory: at least 32 MB, at most 512 MB."""
    return setting or min(512, max(32, usable_memory() // 8 // MEGABYTE))


def decoding_megabytes(setting: int) -> int:
    """The setting, or a quarter of the memory: at least 64 MB, at most 1 GB."""
    return setting or min(1024, max(64, usable_memory() // 4 // MEGABYTE))


class BodyBudget:
    """The bytes of all request bodies that are held; on the event loop only."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, size: int, held_by_request: int) -> None:
        """Counts bytes that arrived for a request that already holds some; MemoryBudgetExceeded if there is no room."""
        self.held += size
        if self.held > self.limit and held_by_request + size > SMALL_BODY:
            raise MemoryBudgetExceeded(
                f"the bodies of requests in flight hold the {self.limit} bytes that are allowed already; "
                "try again in 1 s",
                retry_after=1,
            )

    def give_back(self, size: int) -> None:
        self.held -= size
