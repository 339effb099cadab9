"""Loaded models as /v1/models shows them: all of the bundle, and the device it really runs on."""

from collections.abc import Mapping

from service.model.gate import expectation_of
from service.model.manifest import Policy, Score
from service.serving.override_store import GateSetting
from service.serving.predictor import Model
from service.web.v1.schemas import ActiveGate, DeviceInfo, GateInfo, ModelInfo, PolicyInfo, ScoreInfo, VersionInfo


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
        input=manifest.input,
        labels=manifest.labels,
        temperature=manifest.temperature,
        scores={name: _score_info(score) for name, score in manifest.scores.items()},
        default=manifest.default,
        active=_active_gate(model),
        evaluation=manifest.evaluation,
        graphs=manifest.graphs,
        external_data=manifest.external_data,
    )


def gate_info(model: Model, setting: GateSetting | None) -> GateInfo:
    """The gate in force, with who set it."""
    return GateInfo(
        **_active_gate(model).model_dump(),
        model=model.manifest.name,
        version=model.manifest.version,
        by=setting and setting.by,
        at=setting and setting.at,
        note=setting and setting.note,
        ignored=model.override.ignored,
    )


def _active_gate(model: Model) -> ActiveGate:
    gate = model.active_gate
    expected = expectation_of(model.manifest, gate)
    return ActiveGate(
        score=gate.score,
        policy=gate.policy,
        threshold=gate.threshold_shown,
        threshold_raw=gate.threshold,
        expected_rejection_rate=expected.rate,
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
