"""A route that predicts, as plain ASGI: the path that has to be fast.

/v1/predict and /v2/…/infer differ in how a question is read and how its answer is written. Everything between is
here, once: which model, limits, deadlines, hang-ups, what is counted and what is logged.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from service import errors
from service.model.images import Pixels
from service.serving.metrics import Metrics
from service.serving.predictor import Decision, Gate, Model, Predictor
from service.serving.registry import Registry
from service.settings import Settings
from service.web.bodies import BodyLimits
from service.web.deadline import Patience
from service.web.problems import error_response
from service.web.request_context import Context, Lifecycle, context_of
from service.web.v1.query import Head

OUTCOMES: dict[type[errors.RequestError], str] = {
    errors.QueueFull: "shed",
    errors.NotReady: "shed",
    errors.DeadlineExceeded: "timeout",
    errors.InferenceFailed: "error",
}

AnyHead = TypeVar("AnyHead", bound=Head)
Asked = TypeVar("Asked")


@dataclass(slots=True)
class Question(Generic[Asked]):
    """What the predictor needs to know; `asked` is what the answer must know besides."""

    asked: Asked
    gate: Gate
    images: Sequence[bytes | Pixels | errors.RequestError]
    preprocess: bool
    partial: bool = False


class Endpoint(ABC, Generic[AnyHead, Asked]):
    route: ClassVar[str]

    def __init__(
        self,
        settings: Settings,
        lifecycle: Lifecycle,
        registry: Registry,
        predictor: Predictor,
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.limits = BodyLimits(settings.max_body_bytes, settings.max_images)
        self._lifecycle = lifecycle
        self._registry = registry
        self._predictor = predictor
        # For requests that find no model.
        self._nobodys = metrics.bind_requests(("", ""), self.route)

    @abstractmethod
    def read_head(self, scope: Scope, started: float) -> AnyHead:
        """From path, query and headers."""

    @abstractmethod
    async def read_question(self, head: AnyHead, model: Model, receive: Receive) -> Question[Asked]:
        """From the body."""

    @abstractmethod
    def write_answer(
        self,
        question: Question[Asked],
        model: Model,
        decisions: Sequence[Decision | errors.RequestError],
        request_id: str,
    ) -> ASGIApp:
        """What sends the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        outcome, counts, leases = "error", self._nobodys, None
        try:
            head = self.read_head(scope, context.started)
            model = self._choose(head)
            leases = model.leases
            leases.take()
            counts = model.metrics.requests[self.route]
            context.log |= {"model": model.manifest.name, "version": model.manifest.version}
            answer = await self._answer(head, model, receive, context)
            outcome = "ok"
        except errors.RequestError as error:
            outcome = OUTCOMES.get(type(error), "invalid")
            context.log["problem"] = error.detail
            answer = error_response(error, self.route, context.request_id)
        except errors.ClientGone:
            outcome = "cancelled"
            return
        finally:
            counts.done(outcome, time.monotonic() - context.started)
            # Not before: a replaced version's metrics go when its last request has been counted.
            if leases is not None:
                leases.give_back()
        await answer(scope, receive, send)

    def _choose(self, head: Head) -> Model:
        if self._lifecycle.draining:
            raise errors.NotReady("the service is shutting down: send the request to another replica")
        if self._lifecycle.in_flight > self.settings.max_requests:
            raise errors.QueueFull(
                f"{self.settings.max_requests} requests are in flight already; try again in 1 s", retry_after=1
            )
        return self._registry.get(head.model, head.version)

    async def _answer(self, head: AnyHead, model: Model, receive: Receive, context: Context) -> ASGIApp:
        """Reads the question and has it decided, each in its time."""
        sent, question = head.sent, None
        try:
            with Patience(sent.body_deadline) as patience:
                question = await self.read_question(head, model, receive)
                patience.body_is_read(receive, sent.deadline)
                decisions = await self._predictor.predict(
                    model,
                    question.gate,
                    question.images,
                    preprocess=question.preprocess,
                    partial=question.partial,
                    deadline=sent.deadline,
                    request_id=context.request_id,
                )
        except TimeoutError:
            if question is None:
                raise errors.BodyTimeout("the request body did not arrive whole in time") from None
            raise errors.DeadlineExceeded(f"no answer within {sent.timeout_ms} ms") from None
        rejected = sum(isinstance(item, Decision) and not item.accepted for item in decisions)
        context.log |= {"images": len(decisions), "rejected": rejected, "policy": question.gate.policy}
        return self.write_answer(question, model, decisions, context.request_id)
