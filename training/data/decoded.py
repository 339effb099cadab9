"""Decoded images of one command, kept in a file without a name: photos are read several times, and decoded once.

Each pass over a folder would decode its photos again, which takes some 50 times as long as reading them back. The file
is in the folder of temporary files (TMPDIR), holds at most MOST_BYTES, and is gone when the command ends, however it
ends. What does not fit is decoded whenever it is used.

For a training that crops photos at random, the whole of each photo is kept as well, at a size that is enough to crop
from: the same decoding gives both.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from service.model.bundle import Input
from service.model.images import Pixels

MOST_BYTES = 4 * 2**30  # 28,000 images of 224×224 pixels

_current: ContextVar["DecodedImages | None"] = ContextVar("decoded", default=None)


class DecodedImages:
    """Images by their path and the size that they were brought to. Threads may use it together.

    Read and written by system calls and not mapped into memory: mapped pages would count as the command's memory.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, wholes: bool = False) -> None:
        self.wholes = wholes  # whether whole photos are kept too
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as this object
        self._most, self._end = most_bytes, 0
        self._places: dict[tuple[Path, Input, bool], tuple[int, tuple[int, ...]]] = {}
        self._lock = Lock()

    def close(self) -> None:
        """Its images are decoded again from then on."""
        self._places.clear()
        self._most = 0
        self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """For a process that is not forked: it cannot share the file, and decodes."""
        return DecodedImages, (0,)

    def get(self, path: Path, target: Input, whole: bool = False) -> Pixels | None:
        """None if it is not there."""
        found = self._places.get((path, target, whole))
        if found is None:
            return None
        place, shape = found
        image = np.empty(shape, np.uint8)
        return image if os.preadv(self._file.fileno(), [image.data], place) == image.nbytes else None

    def put(self, path: Path, target: Input, image: Pixels, whole: bool = False) -> None:
        """Keeps a copy, if there is room."""
        with self._lock:
            place, self._end = self._end, self._end + image.nbytes
            if self._end > self._most:
                self._end = place
                return
        try:
            written = os.pwrite(self._file.fileno(), np.ascontiguousarray(image).data, place)
        except OSError:  # the disk is full: that must not end the command
            self._most = 0
            return
        if written == image.nbytes:
            self._places[path, target, whole] = place, image.shape


@contextmanager
def keeping_decoded(most_bytes: int = MOST_BYTES, *, wholes: bool = False) -> Iterator[None]:
    """Folders that are read in the block keep their images decoded until its end."""
    kept = DecodedImages(most_bytes, wholes)
    token = _current.set(kept)
    try:
        yield
    finally:
        _current.reset(token)
        kept.close()


def kept_decoded() -> DecodedImages | None:
    """Where folders that are read now keep their images; None: nowhere."""
    return _current.get()
