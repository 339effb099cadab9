"""Keeps a sample of the refused images, with their answers, so that people can label them and train again.

Only where a folder is given. What is kept is the picture itself (RGB pixels, shrunk to a limit, as PNG) and the answer:
not the file as it was sent, no name, no EXIF, no caller. One thread decodes and writes; a request only puts its image
into a bounded queue, and drops it if the queue is full. `FOLDER/MODEL/VERSION/DIGEST.{png,json}`:
`confgate-train data import captured FOLDER` reads it.
"""

import hashlib
import io
import logging
import os
import queue
import random
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from prometheus_client import Counter
from pydantic_core import to_json

from service.errors import RequestError, SettingsError
from service.model.gate import Decision, Gate
from service.model.headers import read_header
from service.model.images import Pixels, shrink
from service.serving.decode_workers import THREAD_SECONDS, DecodeWorkers
from service.serving.metrics import CAPTURE_DROPS, Metrics
from service.serving.served_model import Model
from service.settings import Settings

log = logging.getLogger("confgate")

SCHEMA_VERSION = 1
MAX_WAITING_IMAGES = 64
MAX_WAITING_BYTES = 64_000_000
SECONDS_BETWEEN_CLEANINGS = 600.0
SECONDS_TO_FINISH = 5.0
# The files of this service; any other file in the folder is left alone.
OURS = re.compile(r"\.?[0-9a-f]{32}\.(png|json)(\.part)?")


class Refused(NamedTuple):
    """One image on its way to the folder."""

    image: bytes | Pixels
    size: int
    model: str
    version: int
    record: dict[str, Any]
    # Bound when the model was loaded: looked up by its labels, it would come back after the version is dropped.
    captured: Counter


class Kept(NamedTuple):
    since: float
    size: int


class Capture:
    """The folder, the thread that writes it, and the queue between it and the requests."""

    def __init__(self, settings: Settings, metrics: Metrics, workers: DecodeWorkers | None = None) -> None:
        assert settings.capture_dir is not None
        self._folder = settings.capture_dir
        self._rate = settings.capture_rate
        self._side, self._max_pixels = settings.capture_side, settings.max_pixels
        self._max_bytes, self._max_images = settings.capture_max_mb * 1_000_000, settings.capture_max_images
        self._seconds = settings.capture_days * 86_400
        self._metrics = metrics
        self._workers = workers
        self._dropped = {reason: metrics.capture_dropped.labels(reason) for reason in CAPTURE_DROPS}
        self._queue: queue.Queue[Refused | None] = queue.Queue(MAX_WAITING_IMAGES)
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        # Oldest first; the path has no suffix.
        self._kept: OrderedDict[Path, Kept] = OrderedDict()
        self._bytes = 0
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="capture", daemon=True)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SettingsError(f"capture_dir: '{self._folder}' is not allowed: {error.strerror}") from error
        if not os.access(self._folder, os.R_OK | os.W_OK | os.X_OK):
            raise SettingsError(f"capture_dir: '{self._folder}' is not allowed: this user cannot read and write there")

    def start(self) -> None:
        log.warning(
            "a sample of the refused images is kept",
            extra={"folder": str(self._folder), "rate": self._rate, "days": self._seconds / 86_400},
        )
        self._thread.start()

    def close(self) -> None:
        """Writes what is in the queue, for a few seconds at most."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=SECONDS_TO_FINISH)
            except queue.Full:
                return
            self._thread.join(SECONDS_TO_FINISH)

    def offer(self, model: Model, gate: Gate, image: bytes | Pixels, decision: Decision, request_id: str) -> None:
        """Called on the event loop for each refused image: samples at random, and never blocks."""
        if random.random() >= self._rate:
            return
        size = len(image) if isinstance(image, bytes) else image.nbytes
        with self._lock:
            if self._waiting_bytes + size > MAX_WAITING_BYTES:
                self._dropped["queue_full"].inc()
                return
            self._waiting_bytes += size
        if not isinstance(image, bytes):
            image = image.copy()  # it is a view, and keeps the body with all other images of its request
        manifest, reading = model.manifest, decision.reading
        typicality = reading.scores.get("typicality")
        record = {
            "schema_version": SCHEMA_VERSION,
            "captured": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": request_id,
            "model": manifest.name,
            "version": manifest.version,
            "label": manifest.labels[reading.class_id],
            "probabilities": dict(zip(manifest.labels, reading.probabilities, strict=True)),
            "score": gate.score,
            "score_value": reading.scores[gate.score][1],
            "policy": gate.policy,
            "threshold": gate.threshold_shown,
            "reason": decision.reason,
            "typicality": typicality and typicality[1],
            "certainty": reading.certainty,
            "certainty_threshold": gate.certainty_threshold_shown,
        }
        try:
            self._queue.put_nowait(
                Refused(image, size, manifest.name, manifest.version, record, model.metrics.captured)
            )
        except queue.Full:
            self._forget(size)
            self._dropped["queue_full"].inc()

    def _forget(self, size: int) -> None:
        with self._lock:
            self._waiting_bytes -= size

    def _work(self) -> None:
        self._guarded(self._find_kept)
        cleaned = time.monotonic()
        while True:
            try:
                refused = self._queue.get(timeout=SECONDS_BETWEEN_CLEANINGS)
            except queue.Empty:
                self._guarded(self._clean)
                continue
            if refused is None:
                return
            self._guarded(self._keep, refused)
            self._forget(refused.size)
            if time.monotonic() - cleaned > SECONDS_BETWEEN_CLEANINGS:
                self._guarded(self._clean)
                cleaned = time.monotonic()

    def _guarded(self, job: Callable[..., None], *arguments: Any) -> None:
        """Whatever fails costs captures and nothing else, and does not end the thread; it is logged once."""
        try:
            job(*arguments)
        except Exception as error:
            if not self._failing:
                # A disk that is full or missing needs no traceback.
                unforeseen = None if isinstance(error, OSError | RequestError) else error
                log.error("a refused image could not be kept", exc_info=unforeseen, extra={"why": str(error)})
            self._failing = True
            self._dropped["error"].inc()  # last: whoever sees the count finds the reason in the log
        else:
            self._failing = False

    def _keep(self, refused: Refused) -> None:
        image = refused.image
        # An image that was sent as pixels has the model's own size already.
        png = as_png(self._shrunk(image) if isinstance(image, bytes) else image)
        # Named by their content: a picture that is sent a thousand times is kept once.
        stem = self._folder / refused.model / str(refused.version) / hashlib.sha256(png).hexdigest()[:32]
        if stem in self._kept:
            self._dropped["duplicate"].inc()
            return
        record = to_json({**refused.record, "image": f"{stem.name}.png"}, indent=2)
        for folder in (stem.parent.parent, stem.parent):  # not parents=True: that forgets the mode
            folder.mkdir(exist_ok=True, mode=0o700)
        _write(stem.with_suffix(".png"), png)
        _write(stem.with_suffix(".json"), record)  # last: a picture without its record does not count
        self._add(stem, Kept(time.time(), len(png) + len(record)))
        self._clean()
        refused.captured.inc()

    def _shrunk(self, encoded: bytes) -> Pixels:
        header = read_header(encoded)
        if self._workers is None or header.decode_seconds <= THREAD_SECONDS:
            return shrink(encoded, self._side, self._max_pixels, header)
        return self._workers.shrink(encoded, header, self._side, self._max_pixels)

    def _find_kept(self) -> None:
        """Finds what an earlier process kept: whole pairs count, halves are removed."""
        found: list[tuple[Kept, Path]] = []
        for file in self._folder.glob("*/*/*"):
            if OURS.fullmatch(file.name) is None:
                continue
            stem = file.with_suffix("")
            if file.suffix == ".part" or not (stem.with_suffix(".json").exists() and stem.with_suffix(".png").exists()):
                file.unlink(missing_ok=True)
            elif file.suffix == ".json":
                size = file.stat().st_size + stem.with_suffix(".png").stat().st_size
                found.append((Kept(file.stat().st_mtime, size), stem))
        for kept, stem in sorted(found):
            self._add(stem, kept)
        self._clean()

    def _add(self, stem: Path, kept: Kept) -> None:
        self._kept[stem] = kept
        self._bytes += kept.size

    def _clean(self) -> None:
        """Oldest first, until age, number and size are within their limits."""
        oldest_allowed = time.time() - self._seconds
        while self._kept:
            stem, kept = next(iter(self._kept.items()))
            crowded = self._bytes > self._max_bytes or len(self._kept) > self._max_images
            if not crowded and kept.since >= oldest_allowed:
                break
            stem.with_suffix(".json").unlink(missing_ok=True)
            stem.with_suffix(".png").unlink(missing_ok=True)
            del self._kept[stem]
            self._bytes -= kept.size
        self._metrics.capture_images.set(len(self._kept))
        self._metrics.capture_bytes.set(self._bytes)


def as_png(pixels: Pixels) -> bytes:
    """A PNG of the pixels alone, without anything else that a file carried."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.part")
    # Readable by the service's user alone: these are other people's pictures.
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    partial.replace(path)
