"""What /v1/predict and /v2/…/infer share, once: which model, limits, deadlines, counts, the log line and errors.

The two routes are plain ASGI, because they must be fast. Each reads its own requests and writes its own answers, inside
an `Exchange`:

    with endpoint.begin(scope, receive) as exchange:
        model = exchange.choose_model(name, version)
        with exchange.deadline() as deadline:
            images = ...                                # read from the body, with exchange.receive
            decisions = await exchange.predict(deadline, model, gate, images, ...)
        exchange.answer = ...
    await exchange.send_answer(scope, receive, send)
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import errors
from service.model.gate import Decision, Gate
from service.model.images import Pixels
from service.serving.budgets import BodyBudget
from service.serving.lifecycle import Lifecycle
from service.serving.metrics import Metrics, RequestMetrics
from service.serving.predictor import Predictor
from service.serving.registry import Registry
from service.serving.served_model import Leases, Model
from service.settings import Settings
from service.web.bodies import BodyLimits
from service.web.deadline import Deadline, Deadlines
from service.web.parameters import whole_number
from service.web.problems import error_response
from service.web.request_context import Context, context_of

MAX_TIMEOUT_MS = 600_000
OUTCOMES: dict[type[errors.RequestError], str] = {
    errors.QueueFull: "shed",
    errors.MemoryBudgetExceeded: "shed",
    errors.NotReady: "shed",
    errors.DeadlineExceeded: "timeout",
    errors.InferenceFailed: "error",
    errors.GraphUnavailable: "error",
}


@dataclass(slots=True)  # not frozen: one is made for every request, and frozen would take twice as long
class Headers:
    """What the headers of a request say, the same on /v1 and /v2."""

    content_type: str
    content_length: int | None
    timeout_ms: int
    deadline: float
    body_deadline: float


class InferenceEndpoint:
    """The parts that a route for predictions needs; one per route."""

    def __init__(
        self,
        route: str,
        settings: Settings,
        lifecycle: Lifecycle,
        registry: Registry,
        predictor: Predictor,
        metrics: Metrics,
        bodies: BodyBudget,
    ) -> None:
        self.route = route
        self.settings = settings
        self.limits = BodyLimits(settings.max_body_bytes, settings.max_images)
        self.lifecycle = lifecycle
        self.registry = registry
        self.predictor = predictor
        self.bodies = bodies
        self.deadlines = Deadlines()
        # For requests that find no model.
        self.no_model = metrics.bind_requests(("", ""), route)

    def begin(self, scope: Scope, receive: Receive) -> "Exchange":
        return Exchange(self, scope, receive)


class Exchange:
    """One request for predictions, from its head to its answer.

    Used as a context. However it ends, it is counted and its lease is given back; an error becomes its answer.
    """

    __slots__ = (
        *("_body_bytes", "_body_is_read", "_context", "_counts", "_endpoint", "_leases", "_receive", "_scope"),
        *("answer", "file_names", "headers"),
    )

    headers: Headers

    def __init__(self, endpoint: InferenceEndpoint, scope: Scope, receive: Receive) -> None:
        self._endpoint = endpoint
        self._scope = scope
        self._receive = receive
        self._body_bytes = 0
        self._context: Context = context_of(scope)
        self._counts: RequestMetrics = endpoint.no_model
        self._leases: Leases | None = None
        self._body_is_read = False
        self.answer: ASGIApp | None = None
        # Of a form, one for each image. For answers only: a name may say whose file it is, and is never logged.
        self.file_names: Sequence[str | None] | None = None

    @property
    def request_id(self) -> str:
        return self._context.request_id

    def __enter__(self) -> Self:
        return self

    def read_headers(self) -> Headers:
        """Content type and length, and the deadlines that follow from the time the request began."""
        settings, started = self._endpoint.settings, self._context.started
        content_type, content_length, timeout_ms = "", None, settings.request_timeout_ms
        for name, value in self._scope["headers"]:
            if name == b"content-type":
                content_type = value.decode("latin-1")
            elif name == b"content-length":
                content_length = int(value)  # the HTTP parser has refused everything but digits
            elif name == b"x-request-timeout-ms":
                timeout_ms = whole_number("X-Request-Timeout-Ms", value.decode("latin-1"), MAX_TIMEOUT_MS)
        deadline = started + timeout_ms / 1000
        self.headers = Headers(
            content_type=content_type,
            content_length=content_length,
            timeout_ms=timeout_ms,
            deadline=deadline,
            body_deadline=min(deadline, started + settings.body_timeout_ms / 1000),
        )
        return self.headers

    def choose_model(self, name: str | None, version: int | None) -> Model:
        """The model that answers, with a lease on it until the exchange ends."""
        endpoint = self._endpoint
        if endpoint.lifecycle.draining:
            raise errors.NotReady("the service is shutting down: send the request to another replica")
        if endpoint.lifecycle.predictions_in_flight >= endpoint.settings.max_requests:
            raise errors.QueueFull(
                f"{endpoint.settings.max_requests} requests are in flight already; try again in 1 s", retry_after=1
            )
        # Until the answer is sent: see `RequestContext`.
        endpoint.lifecycle.predictions_in_flight += 1
        self._context.prediction = True
        model = endpoint.registry.get(name, version)
        self._leases = model.leases
        self._leases.take()
        self._counts = model.metrics.requests[endpoint.route]
        self._context.log |= {"model": model.manifest.name, "version": model.manifest.version}
        return model

    def deadline(self) -> Deadline:
        """Limits what is inside it: first the time to read the body, then, in `predict`, the time to answer."""
        return Deadline(self.headers.body_deadline, self._endpoint.deadlines)

    async def receive(self) -> Message:
        """The next part of the body, counted among the bytes in flight until the exchange ends."""
        message = await self._receive()
        size = len(message.get("body", b""))
        held, self._body_bytes = self._body_bytes, self._body_bytes + size
        self._endpoint.bodies.take(size, held)
        return message

    async def predict(
        self,
        deadline: Deadline,
        model: Model,
        gate: Gate,
        images: Sequence[bytes | Pixels | errors.RequestError],
        *,
        preprocess: bool,
        partial: bool = False,
    ) -> list[Decision | errors.RequestError]:
        """One decision for each image of a body that has been read."""
        self._body_is_read = True
        deadline.body_is_read(self._receive, self.headers.deadline)
        decisions = await self._endpoint.predictor.predict(
            model,
            gate,
            images,
            preprocess=preprocess,
            partial=partial,
            deadline=self.headers.deadline,
            request_id=self.request_id,
        )
        rejected = sum(isinstance(item, Decision) and not item.accepted for item in decisions)
        self._context.log |= {"images": len(decisions), "rejected": rejected, "policy": gate.policy}
        return decisions

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, TimeoutError):
            error = self._timeout()
        outcome = "error"
        if error is None:
            outcome = "ok"
        elif isinstance(error, errors.RequestError):
            outcome = OUTCOMES.get(type(error), "invalid")
            error.__traceback__ = None  # it would keep the body in memory until the garbage collector runs
            self._context.log["problem"] = error.detail
            # Not kept in the error, which requests of one failed batch share.
            members = None
            if self.file_names is not None and error.index is not None:
                members = {"file_name": self.file_names[error.index]}
            self.answer = error_response(error, self._endpoint.route, self.request_id, members)
        elif isinstance(error, errors.ClientGone):
            outcome = "cancelled"
        self._endpoint.bodies.give_back(self._body_bytes)
        self._counts.done(outcome, time.monotonic() - self._context.started)
        # Not before: the metrics of a replaced version are removed when its last request has been counted.
        if self._leases is not None:
            self._leases.give_back()
        return isinstance(error, errors.RequestError | errors.ClientGone)

    async def send_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the answer; there is none for a client that disconnected."""
        if self.answer is not None:
            await self.answer(scope, receive, send)

    def _timeout(self) -> errors.RequestError:
        if self._body_is_read:
            return errors.DeadlineExceeded(f"no answer within {self.headers.timeout_ms} ms")
        return errors.BodyTimeout("the request body did not arrive whole in time")
