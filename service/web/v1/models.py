"""GET /v1/models: loaded models with all of their bundle, and the device they really run on."""

from collections.abc import Mapping

from fastapi import APIRouter, Request

from service.model.expectation import expectation_of
from service.model.gate import Gate
from service.model.manifest import Policy, Score
from service.model.pairs import PairPolicy
from service.serving.gate_changes import finite
from service.serving.override_store import ExpectedShares
from service.serving.registry import Registry
from service.serving.served_model import Model
from service.web.v1.schemas import (
    PROBLEM,
    ActiveGate,
    DeviceInfo,
    ModelInfo,
    ModelsResponse,
    PairInfo,
    PairsInfo,
    ParallelismInfo,
    PolicyInfo,
    ScoreInfo,
    SessionInfo,
    VersionInfo,
)

router = APIRouter(prefix="/v1", tags=["v1"])


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


def model_info(name: str, versions: Mapping[int, Model]) -> ModelInfo:
    return ModelInfo(
        name=name,
        default_version=max(versions),
        versions=[_version_info(model) for model in versions.values()],
    )


def _version_info(model: Model) -> VersionInfo:
    manifest = model.manifest
    return VersionInfo(
        version=manifest.version,
        created=manifest.created,
        provenance=manifest.provenance,
        device=DeviceInfo(requested=model.requested_device, active=model.device),
        parallelism=ParallelismInfo(threads=model.parallelism.threads, workers=model.parallelism.workers),
        input=manifest.input,
        max_batch=manifest.max_batch,
        sessions={
            graph: SessionInfo(largest_batch=session.largest_batch, open=graph in model.open_graphs)
            for graph, session in model.sessions.items()
        },
        labels=manifest.labels,
        temperature=manifest.temperature,
        scores={name: _score_info(score) for name, score in manifest.scores.items()},
        pairs=_pairs_info(model),
        default=manifest.default,
        active=active_gate(model),
        evaluation=manifest.evaluation,
        graphs=manifest.graphs,
        external_data=manifest.external_data,
    )


def active_gate(model: Model) -> ActiveGate:
    """What decides for requests that name neither score nor policy, and what calibration expects of it."""
    gate = model.active_gate
    expected = expectation_of(model.manifest, gate)
    return ActiveGate(
        score=gate.score,
        policy=gate.policy,
        threshold=gate.threshold_shown,
        threshold_raw=finite(gate.threshold),
        certainty_threshold=gate.certainty_threshold_shown,
        certainty_threshold_raw=finite(gate.certainty_threshold),
        expected_rejection_rate=expected.rate,
        expected_refusals=ExpectedShares(unfamiliar=expected.unfamiliar, unsure=expected.unsure),
        expected_rejection_margin=expected.margin,
        n=expected.n,
        set_by_operator=model.override.gate is not None,
    )


def _score_info(score: Score) -> ScoreInfo:
    return ScoreInfo(
        epsilon=score.epsilon,
        temperature=score.temperature,
        display=score.display,
        typicality=score.typicality,
        policies={name: _policy_info(score, policy) for name, policy in score.policies.items()},
        reference=score.reference,
    )


def _pairs_info(model: Model) -> PairsInfo | None:
    pairs = model.manifest.pairs
    if pairs is None:
        return None
    return PairsInfo(
        policies={name: _pair_info(policy, model.pairs[name]) for name, policy in pairs.policies.items()},
        joint=pairs.joint,
    )


def _pair_info(policy: PairPolicy, gate: Gate) -> PairInfo:
    assert gate.certainty_threshold_shown is not None, "it is a pair"
    return PairInfo(
        familiarity=gate.threshold_shown,
        familiarity_raw=policy.familiarity,
        certainty=gate.certainty_threshold_shown,
        certainty_raw=policy.certainty,
        expected=policy.expected,
        n=policy.n,
        how=policy.how,
    )


def _policy_info(score: Score, policy: Policy) -> PolicyInfo:
    return PolicyInfo(
        threshold=float(score.shown(policy.threshold)),
        threshold_raw=policy.threshold,
        expected_rejection_rate=policy.expected_rejection_rate,
        expected_rejection_interval=policy.expected_rejection_interval,
        detection_error=policy.detection_error,
        n=policy.n,
        how=policy.how,
    )
