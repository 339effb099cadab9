"""The number of CPUs a container may use."""

import os
from pathlib import Path

import pytest

from service.cpus import usable_cpus

MACHINE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, MACHINE),
        ({"cpu.max": "max 100000\n"}, MACHINE),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, min(2, MACHINE)),
        ({"cpu.max": "6400000 100000\n"}, MACHINE),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, MACHINE),
    ],
)
def test_the_quota_limits_the_cpus(tmp_path: Path, files: dict[str, str], cpus: int) -> None:
    """A cgroup's quota, v2 or v1, is rounded up to whole CPUs and never more than the machine's."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cpus(tmp_path) == cpus
