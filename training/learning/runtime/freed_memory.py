"""Keeps freed memory in the process, instead of returning it to the system and requesting it again at every step.

The tensors of a training step are larger than what glibc keeps (32 MiB): it maps each of them again, and the kernel
clears every page before the first write. That takes up to a tenth of a step on a CPU.
"""

import ctypes

# From glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
NEVER = -1


def keep_freed_memory() -> bool:
    """Holds for the rest of this process. Returns False if the C library has no such setting (it is not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
