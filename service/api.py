"""The /v1 routes: they read requests and write answers; what to answer is decided in `service.predictor`."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service import errors
from service.asking import Ask, read_ask
from service.bodies import BodyLimits, read_images
from service.disconnect import HangUpWatch
from service.edge import Lifecycle, context_of
from service.metrics import Metrics, RequestMetrics
from service.predictor import Decision, Gate, Model, Predictor
from service.problems import error_response, problem_body, problem_of
from service.registry import Registry
from service.schemas import ModelInfo, ModelsResponse, ProblemResponse
from service.settings import Settings
from service.views import model_info

ROUTE = "/v1/predict"
OUTCOMES: dict[type[errors.RequestError], str] = {
    errors.QueueFull: "shed",
    errors.NotReady: "shed",
    errors.DeadlineExceeded: "timeout",
    errors.InferenceFailed: "error",
}

router = APIRouter(prefix="/v1", tags=["v1"])


class PredictEndpoint:
    """POST /v1/predict as plain ASGI: this is the path that has to be fast."""

    def __init__(
        self,
        settings: Settings,
        lifecycle: Lifecycle,
        registry: Registry,
        predictor: Predictor,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._registry = registry
        self._predictor = predictor
        self._metrics = metrics
        self._bound: dict[tuple[str, str], RequestMetrics] = {}
        self._limits = BodyLimits(settings.max_body_bytes, settings.max_images)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        outcome, labels = "error", ("", "")
        try:
            ask = read_ask(scope, context.started, self._settings)
            model, gate = self._choose(ask)
            labels = model.metrics.labels
            context.log |= {"model": labels[0], "version": model.manifest.version}
            decisions = await self._decide(ask, model, gate, receive)
            answers = [answer(model, gate, ask, decision) for decision in decisions]
            rejected = sum(isinstance(item, Decision) and not item.accepted for item in decisions)
            context.log |= {"images": len(answers), "rejected": rejected, "policy": gate.policy}
            body = {"id": context.request_id, "model": labels[0], "version": model.manifest.version}
            response = Response(to_json({**body, "predictions": answers}), media_type="application/json")
            outcome = "ok"
        except errors.RequestError as error:
            outcome = OUTCOMES.get(type(error), "invalid")
            context.log["problem"] = error.detail
            response = error_response(error, ROUTE, context.request_id)
        except errors.ClientGone:
            outcome = "cancelled"
            return
        finally:
            self._count(labels, outcome, time.monotonic() - context.started)
        await response(scope, receive, send)

    def _choose(self, ask: Ask) -> tuple[Model, Gate]:
        if self._lifecycle.draining:
            raise errors.NotReady("the service is shutting down: send the request to another replica")
        if self._lifecycle.in_flight > self._settings.max_requests:
            raise errors.QueueFull(
                f"{self._settings.max_requests} requests are in flight already; try again in 1 s", retry_after=1
            )
        model = self._registry.get(ask.model, ask.version)
        return model, model.choose_gate(ask.score, ask.policy, ask.preprocess)

    async def _decide(
        self, ask: Ask, model: Model, gate: Gate, receive: Receive
    ) -> list[Decision | errors.RequestError]:
        """Reads the images and has them decided, each in its time."""
        images: list[bytes | errors.RequestError] | None = None
        try:
            async with asyncio.timeout_at(ask.body_deadline) as limit:
                images = await read_images(receive, ask.content_type, ask.content_length, self._limits)
                if ask.deadline != ask.body_deadline:
                    limit.reschedule(ask.deadline)
                with HangUpWatch(receive):
                    return await self._predictor.predict(
                        model, gate, images, preprocess=ask.preprocess, partial=ask.partial, deadline=ask.deadline
                    )
        except TimeoutError:
            if images is None:
                raise errors.BodyTimeout("the request body did not arrive whole in time") from None
            raise errors.DeadlineExceeded(f"no answer within {ask.timeout_ms} ms") from None

    def expect(self, labels: tuple[str, str]) -> None:
        """Lets a model's counts start at 0 now: a counter that appears with a 1 has no rate Prometheus could see."""
        self._bound[labels] = self._metrics.bind_requests(labels, ROUTE)

    def _count(self, labels: tuple[str, str], outcome: str, seconds: float) -> None:
        bound = self._bound.get(labels)
        if bound is None:
            bound = self._bound[labels] = self._metrics.bind_requests(labels, ROUTE)
        bound.done(outcome, seconds)


def answer(model: Model, gate: Gate, ask: Ask, decision: Decision | errors.RequestError) -> dict[str, Any]:
    """One image's part of the response."""
    if isinstance(decision, errors.RequestError):
        return {"error": problem_body(problem_of(decision), decision.detail, decision.index)}
    manifest, reading = model.manifest, decision.reading
    labels, probabilities, scores = manifest.labels, reading.probabilities, reading.scores
    if ask.top_k is None:
        shown = dict(zip(labels, probabilities, strict=True))
    else:
        ranked = sorted(range(len(labels)), key=probabilities.__getitem__, reverse=True)
        shown = {labels[i]: probabilities[i] for i in ranked[: ask.top_k]}
    preprocessed = manifest.preprocessed_score
    computed = scores.get(preprocessed) if preprocessed is not None else None
    return {
        "class_id": reading.class_id,
        "label": labels[reading.class_id],
        "probabilities": shown,
        "confidence": scores["confidence" if manifest.has_confidence else "max_softmax"][1],
        "confidence_preprocessed": computed and computed[1],
        "in_distribution": decision.accepted,
        "score": gate.score,
        "score_value": scores[gate.score][1],
        "policy": gate.policy,
        "threshold": gate.threshold_shown,
    }


@router.get("/models")
async def list_models(request: Request) -> ModelsResponse:
    """Everything that is served: versions, labels, scores, policies, evaluation, device."""
    registry: Registry = request.app.state.registry
    models = [model_info(name, versions) for name, versions in registry.table.items()]
    return ModelsResponse(default_model=registry.default_name, models=models)


@router.get(
    "/models/{model}",
    responses={
        404: {"model": ProblemResponse, "description": "Not loaded."},
        503: {"model": ProblemResponse, "description": "Nothing is loaded yet."},
    },
)
async def show_model(request: Request, model: str) -> ModelInfo:
    """One model with all its served versions."""
    registry: Registry = request.app.state.registry
    registry.get(model, None)
    return model_info(model, registry.table[model])
