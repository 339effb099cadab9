"""Keeps memory that was freed, instead of giving it back to the system and asking for it again at every step.

The tensors of a training step are larger than what glibc keeps (32 MiB): it maps each of them anew, and the system
clears every page of it before the first write. That is up to a tenth of a step on a CPU.
"""

import ctypes

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
NEVER = -1


def keep_freed_memory() -> bool:
    """For the rest of this process; False where the C library has no such setting (it is not glibc)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
