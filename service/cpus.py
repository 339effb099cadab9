"""How many CPUs this process may really use: the machine's core count does not show a container's quota."""

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cpus(cgroup: Path = CGROUP) -> int:
    """Whole CPUs from the scheduler's affinity and the cgroup's quota (v2, then v1); at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    # Rounded up: with 1.5 CPUs a second thread still finds half a CPU to run on.
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    v2 = _words(cgroup / "cpu.max")
    if len(v2) == 2:
        return None if v2[0] == "max" else int(v2[0]) / int(v2[1])
    quota, period = _words(cgroup / "cpu/cpu.cfs_quota_us"), _words(cgroup / "cpu/cpu.cfs_period_us")
    if quota and period and int(quota[0]) > 0:
        return int(quota[0]) / int(period[0])
    return None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
