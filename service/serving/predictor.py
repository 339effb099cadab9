"""The main path of a request: decode → batch → gate."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial as bound
from typing import cast

import numpy as np

from service.errors import InferenceFailed, QueueFull, RequestError
from service.model.gate import Decision, Gate, Reading
from service.model.headers import Header, ImageLimits, check_header, read_header, read_instant_header
from service.model.images import Pixels, decode
from service.model.scores import PREPROCESSED_SCORES
from service.serving.batcher import Batcher, Ticket
from service.serving.decode_pool import DecodePool
from service.serving.decode_workers import THREAD_SECONDS, DecodeWorkers
from service.serving.served_model import Model
from service.serving.worker_process import Job

Encoded = deque[tuple[int, bytes]]  # images of a request that are still to be decoded, each with its place
# Called for each refused image: model, gate, the image as it came, the decision about it, and the request's id.
OnRefused = Callable[[Model, Gate, bytes | Pixels, Decision, str], None]


class Predictor:
    """Decides about images with the threads that decode and the queues of the models."""

    def __init__(
        self,
        decode_pool: DecodePool,
        decode_workers: DecodeWorkers | None,
        limits: ImageLimits,
        on_refused: OnRefused | None = None,
    ) -> None:
        self._decode_pool = decode_pool
        self._decode_workers = decode_workers
        self._on_refused = on_refused
        self._limits = limits

    async def predict(
        self,
        model: Model,
        gate: Gate,
        images: Sequence[bytes | Pixels | RequestError],
        *,
        preprocess: bool,
        partial: bool,
        deadline: float,
        request_id: str = "",
    ) -> list[Decision | RequestError]:
        """One decision for each image. A bad image fails the request, or with `partial` only itself."""
        queue = model.queues["perturbed" if preprocess or gate.score in PREPROCESSED_SCORES else "forward"]
        with queue.admit(len(images), deadline) as ticket:
            if isinstance(images[0], np.ndarray):
                queue.put_all(ticket, cast(Sequence[Pixels], images))  # a request has pixels for all images or for none
            else:
                self._begin(model, queue, ticket, cast(Sequence[bytes | RequestError], images))
            readings = await ticket.result()
        for index, reading in enumerate(readings):
            if isinstance(reading, RequestError):
                reading.index = index
                if not partial:
                    raise reading
        decisions = [item if isinstance(item, RequestError) else gate.decide(item) for item in readings]
        # Only now, when nothing can fail any more: a request is counted as a whole or not at all.
        for decision in decisions:
            if isinstance(decision, Decision):
                _count(model, decision)
        if self._on_refused is not None:
            for image, decision in zip(images, decisions, strict=True):
                if isinstance(decision, Decision) and not decision.accepted:
                    assert not isinstance(image, RequestError)  # those have no decision
                    self._on_refused(model, gate, image, decision, request_id)
        return decisions

    def _begin(
        self,
        model: Model,
        queue: Batcher[Reading],
        ticket: Ticket[Reading],
        images: Sequence[bytes | RequestError],
    ) -> None:
        """Has image files decoded; those of one request by as many threads as there are."""
        encoded: Encoded = deque()
        for place, image in enumerate(images):
            if isinstance(image, RequestError):
                queue.refuse(ticket, place, image)
            elif len(images) > 1 or not self._decode_if_idle(model, queue, ticket, image):
                encoded.append((place, image))
        for _ in range(min(len(encoded), self._decode_pool.size)):
            self._decode_pool.submit(self._decode_next, model, queue, ticket, encoded, bulk=len(images) > 1)

    def _decode_if_idle(self, model: Model, queue: Batcher[Reading], ticket: Ticket[Reading], image: bytes) -> bool:
        """One tiny image for an idle model is decoded by the thread that will compute it."""
        header = read_instant_header(image)
        if header is None:
            return False
        return queue.prepare_if_idle(bound(self._decode, model, queue, ticket, 0, image, header))

    def _decode_next(self, model: Model, queue: Batcher[Reading], ticket: Ticket[Reading], encoded: Encoded) -> None:
        """Decodes one image of a request, and lines up again for its next: requests with many images take turns."""
        try:
            place, image = encoded.popleft()
        except IndexError:
            return  # another thread took the last one
        try:
            # A decoded image goes from its thread straight into the queue, without the event loop.
            self._decode(model, queue, ticket, place, image)
        finally:
            if encoded:
                self._decode_pool.submit(self._decode_next, model, queue, ticket, encoded, bulk=True)

    def _decode(
        self,
        model: Model,
        queue: Batcher[Reading],
        ticket: Ticket[Reading],
        place: int,
        encoded: bytes,
        header: Header | None = None,
    ) -> None:
        """In a thread: decodes a small image, or hands a large one to a worker process; its header decides."""
        if ticket.over:
            return
        started = time.perf_counter()

        def done(decoded: Pixels | RequestError) -> None:
            model.metrics.decode.observe(time.perf_counter() - started)
            if isinstance(decoded, QueueFull):
                queue.shed(ticket, decoded)
            elif isinstance(decoded, RequestError):
                queue.refuse(ticket, place, decoded)
            else:
                queue.put(ticket, place, decoded)

        decoded: Pixels | RequestError | None = InferenceFailed("the image made the decoder fail")
        try:
            header = header or read_header(encoded)
            check_header(header, self._limits)
            if self._decode_workers is None or header.decode_seconds <= THREAD_SECONDS:
                decoded = decode(encoded, model.manifest.input, self._limits.max_pixels, header)
            else:
                job = Job(encoded, header, self._limits.max_pixels, done, lambda: ticket.over, model.manifest.input)
                self._decode_workers.submit(job, ticket.deadline)
                decoded = None  # the worker's thread calls `done`
        except RequestError as error:
            # Its traceback would keep this frame, and with it the file, until the garbage collector runs.
            decoded = error.with_traceback(None)
        finally:
            # Also where `decode` raises what it should not: a request waits for this image.
            if decoded is not None:
                done(decoded)


def _count(model: Model, decision: Decision) -> None:
    reading, metrics = decision.reading, model.metrics
    metrics.count_image(reading.scores, reading.class_id, decision.reason)
    custom = model.override.custom
    if custom is not None and custom.score in reading.scores:
        metrics.count_custom(custom.reason_to_refuse(reading))
