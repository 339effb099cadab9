"""Loaded models as /v1/models shows them: all of the bundle, and the device it really runs on."""

from collections.abc import Mapping

from service.manifest import Policy, Score
from service.predictor import Model
from service.schemas import DeviceInfo, ModelInfo, PolicyInfo, ScoreInfo, VersionInfo


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
        evaluation=manifest.evaluation,
        graphs=manifest.graphs,
        external_data=manifest.external_data,
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
