"""How much memory this process may use: a container's limit does not show in the machine's memory."""

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_memory(cgroup: Path = CGROUP) -> int:
    """Bytes, from the machine's memory and the cgroup's limit (v2, then v1)."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_limit(cgroup / "memory.max"), _limit(cgroup / "memory" / "memory.limit_in_bytes"))
    return min([machine, *(limit for limit in limits if limit is not None)])


def _limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
