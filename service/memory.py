"""Memory of this process: how much it may use, how much it uses, and returning what was freed to the system.

A container's limit does not show in the machine's memory.
"""

import ctypes
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
STATM = Path("/proc/self/statm")  # where the system has it: pages of this process, then those that are resident


def usable_memory(cgroup: Path = CGROUP) -> int:
    """Bytes, from the machine's memory and the cgroup's limit (v2, then v1)."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_limit(cgroup / "memory.max"), _limit(cgroup / "memory" / "memory.limit_in_bytes"))
    return min([machine, *(limit for limit in limits if limit is not None)])


def resident_memory() -> int | None:
    """Bytes of this process that are in memory now; None where the system does not tell."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def return_freed_memory() -> None:
    """Gives freed memory back to the system, where the C library can (glibc): it would keep much of it."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
