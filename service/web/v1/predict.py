"""The /v1 routes: they read requests and write answers; what to answer is decided in `service.serving.predictor`."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.types import ASGIApp, Receive, Scope, Send

from service import errors
from service.serving.metrics import PREDICT_ROUTE
from service.serving.predictor import Decision, Gate, Model
from service.serving.registry import Registry
from service.web.bodies import read_images
from service.web.inference_endpoint import Endpoint, Question
from service.web.problems import problem_body, problem_of
from service.web.v1.models import model_info
from service.web.v1.query import Ask, read_ask
from service.web.v1.schemas import PROBLEM, ModelInfo, ModelsResponse

JSON = (b"content-type", b"application/json")

router = APIRouter(prefix="/v1", tags=["v1"])


class PredictEndpoint(Endpoint[Ask, Ask]):
    """POST /v1/predict."""

    route = PREDICT_ROUTE

    def read_head(self, scope: Scope, started: float) -> Ask:
        return read_ask(scope, started, self.settings)

    async def read_question(self, head: Ask, model: Model, receive: Receive) -> Question[Ask]:
        gate = model.choose_gate(head.score, head.policy, head.preprocess)
        images = await read_images(receive, head.sent.content_type, head.sent.content_length, self.limits)
        return Question(head, gate, images, head.preprocess, head.partial)

    def write_answer(
        self,
        question: Question[Ask],
        model: Model,
        decisions: Sequence[Decision | errors.RequestError],
        request_id: str,
    ) -> ASGIApp:
        answers = [answer(model, question.gate, question.asked, decision) for decision in decisions]
        body = {"id": request_id, "model": model.manifest.name, "version": model.manifest.version}
        return json_answer(to_json({**body, "predictions": answers}))


def json_answer(body: bytes) -> ASGIApp:
    """A 200 with a body of JSON; Starlette's Response has more to offer and takes three times as long."""

    async def send_it(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % len(body)), JSON]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return send_it


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
        "typicality": scores["typicality"][1] if "typicality" in scores else None,
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
        404: {"description": "Not loaded.", **PROBLEM},
        503: {"description": "Nothing is loaded yet.", **PROBLEM},
    },
)
async def show_model(request: Request, model: str) -> ModelInfo:
    """One model with all its served versions."""
    registry: Registry = request.app.state.registry
    registry.get(model, None)
    return model_info(model, registry.table[model])
