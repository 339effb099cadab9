"""Figures of a bundle on test images: each is measured on ONNX Runtime's outputs and has its n.

A figure with a policy and no score is of a pair.
"""

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Figure
from service.model.scores import Floats, Outputs
from training.calibration.calibrate import Calibrated
from training.calibration.pair_policies import Pair, Refusals, refusals
from training.calibration.pairs import pair_scores
from training.metrics.detection import auroc, detection_error, fpr_at_tpr, threshold_keeping
from training.metrics.mixed_traffic import MIXED_AUGRC, MIXED_RISK, joint_rank, mixed_augrc, wrong_among_accepted


def in_distribution_figures(
    data: str, outputs: Outputs, labels: NDArray[np.int64], calibrated: Calibrated
) -> list[Figure]:
    """Accuracy, and for each policy the share refused and the accuracy of the accepted answers."""
    right = outputs["logits"].argmax(axis=1) == labels
    figures = [Figure(metric="accuracy", data=data, value=float(right.mean()), n=len(labels))]
    for name, score in calibrated.scores.items():
        values = score.of_images(name, outputs)
        if right.any() and not right.all():
            area = auroc(values[right], values[~right])
            figures.append(Figure(metric="auroc_misclassified", data=data, value=area, n=len(labels), score=name))
        for policy_name, policy in score.policies.items():
            kept = values > policy.threshold
            where = {"data": data, "score": name, "policy": policy_name}
            figures.append(Figure(metric="rejection_rate", value=float(1 - kept.mean()), n=len(labels), **where))
            figures += _accepted_accuracy(kept, right, **where)
    for policy_name, refused in refused_by_pairs(outputs, calibrated).items():
        figures += _pair_rates(data, policy_name, refused)
        figures += _accepted_accuracy(~refused.any, right, data=data, policy=policy_name)
    return figures


def out_of_distribution_figures(
    data: str, in_distribution: Outputs, ood: Outputs, labels: NDArray[np.int64], calibrated: Calibrated
) -> list[Figure]:
    """How well each score separates in-distribution from OOD test images, and what each policy refuses."""
    figures = []
    for name, score in calibrated.scores.items():
        accepted = score.of_images(name, in_distribution)
        refused = score.of_images(name, ood)
        separation = {
            "auroc": auroc(accepted, refused),
            "fpr_at_95_tpr": fpr_at_tpr(accepted, refused),
            "detection_error": detection_error(accepted, refused).detection_error,
        }
        n = len(accepted) + len(refused)
        figures += [Figure(metric=m, data=data, value=v, n=n, score=name) for m, v in separation.items()]
        for policy_name, policy in score.policies.items():
            rate = float(np.mean(refused <= policy.threshold))
            figures.append(
                Figure(
                    metric="rejection_rate",
                    data=data,
                    value=rate,
                    n=len(refused),
                    score=name,
                    policy=policy_name,
                )
            )
    for policy_name, refused_by_pair in refused_by_pairs(ood, calibrated).items():
        figures += _pair_rates(data, policy_name, refused_by_pair)
    return figures + _mixed_traffic(data, in_distribution, ood, labels, calibrated)


def refused_by_pairs(outputs: Outputs, calibrated: Calibrated) -> dict[str, Refusals]:
    """What each pair refuses of these images, by the name of its policy."""
    found = pair_scores(calibrated.scores, outputs)
    return {
        name: refusals(Pair(policy.familiarity, policy.certainty, policy.how), found)
        for name, policy in calibrated.pairs.policies.items()
    }


def _mixed_traffic(
    data: str, in_distribution: Outputs, ood: Outputs, labels: NDArray[np.int64], calibrated: Calibrated
) -> list[Figure]:
    """The default pair beside every single score, each with a threshold that refuses as many calibration images."""
    if calibrated.default.score is not None:
        return []
    policy = calibrated.default.policy
    right = in_distribution["logits"].argmax(axis=1) == labels
    own, foreign = refused_by_pairs(in_distribution, calibrated)[policy], refused_by_pairs(ood, calibrated)[policy]
    n = len(labels) + len(foreign.any)
    figures = _mixed(data, n, wrong_among_accepted(~own.any, right, ~foreign.any), policy=policy)
    ranks = [_joint_ranks(outputs, calibrated) for outputs in (in_distribution, ood)]
    figures.append(
        Figure(metric=MIXED_AUGRC, data=data, value=mixed_augrc(ranks[0], right, ranks[1]), n=n, policy=policy)
    )
    share = calibrated.pairs.policies[policy].expected.total.rate
    for name, score in calibrated.scores.items():
        threshold = threshold_keeping(1 - share, score.of_images(name, calibrated.in_distribution))
        values, theirs = score.of_images(name, in_distribution), score.of_images(name, ood)
        figures += _mixed(data, n, wrong_among_accepted(values > threshold, right, theirs > threshold), score=name)
        figures.append(Figure(metric=MIXED_AUGRC, data=data, value=mixed_augrc(values, right, theirs), n=n, score=name))
    return figures


def _joint_ranks(outputs: Outputs, calibrated: Calibrated) -> Floats:
    familiarity, certainty = calibrated.scores["typicality"], calibrated.scores["certainty"]
    return joint_rank(
        familiarity.shown(familiarity.of_images("typicality", outputs)),
        certainty.of_images("certainty", outputs),
        certainty.of_images("certainty", calibrated.in_distribution),
    )


def _mixed(data: str, n: int, value: float | None, **of: str) -> list[Figure]:
    return [] if value is None else [Figure(metric=MIXED_RISK, data=data, value=value, n=n, **of)]


def _accepted_accuracy(kept: NDArray[np.bool_], right: NDArray[np.bool_], **of: str) -> list[Figure]:
    if not kept.any():
        return []
    return [Figure(metric="accepted_accuracy", value=float(right[kept].mean()), n=int(kept.sum()), **of)]


def _pair_rates(data: str, policy: str, refused: Refusals) -> list[Figure]:
    shares = {
        "rejection_rate": refused.any,
        "rejection_rate_unfamiliar": refused.unfamiliar,
        "rejection_rate_unsure": refused.unsure,
    }
    return [
        Figure(metric=metric, data=data, value=float(rows.mean()), n=len(rows), policy=policy)
        for metric, rows in shares.items()
    ]
