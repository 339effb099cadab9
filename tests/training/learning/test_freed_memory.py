"""Freed memory stays with the process, so that the next training step need not ask for it again."""

import subprocess
import sys

import pytest

from tests.training.command_line import ENVIRONMENT

# Prints the MiB that are resident after a block is freed; a block of 32 MiB or less glibc might keep of its own accord.
PROGRAM = """
import ctypes, sys
from training.learning.runtime.freed_memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    print("no glibc"); sys.exit()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
block = libc.malloc(200 << 20)
ctypes.memset(block, 1, 200 << 20)
libc.free(block)
print(int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20)
"""


def resident_after_free(how: str) -> str:
    command = [sys.executable, "-c", PROGRAM, how]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and needs glibc")
def test_a_freed_block_stays_with_the_process() -> None:
    """A block of 200 MiB that was freed is still resident, where it would have gone back to the system."""
    kept = resident_after_free("keep")
    if kept == "no glibc":
        pytest.skip("this C library has no mallopt")
    assert int(kept) > 200 > int(resident_after_free("plain"))
