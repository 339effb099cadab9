"""Figures of a bundle on test images: each is measured on ONNX Runtime's outputs and has its n."""

import numpy as np
from numpy.typing import NDArray

from service.model.bundle import Figure, Score
from service.model.scores import Outputs, ScoreName
from training.metrics.detection import auroc, detection_error, fpr_at_tpr


def in_distribution_figures(
    data: str, outputs: Outputs, labels: NDArray[np.int64], scores: dict[ScoreName, Score]
) -> list[Figure]:
    """Accuracy, and for each policy the share refused and the accuracy of the accepted answers."""
    right = outputs["logits"].argmax(axis=1) == labels
    figures = [Figure(metric="accuracy", data=data, value=float(right.mean()), n=len(labels))]
    for name, score in scores.items():
        values = score.of_images(name, outputs)
        if right.any() and not right.all():
            figures.append(
                Figure(
                    metric="auroc_misclassified",
                    data=data,
                    value=auroc(values[right], values[~right]),
                    n=len(labels),
                    score=name,
                )
            )
        for policy_name, policy in score.policies.items():
            kept = values > policy.threshold
            where = {"data": data, "score": name, "policy": policy_name}
            figures.append(Figure(metric="rejection_rate", value=float(1 - kept.mean()), n=len(labels), **where))
            if kept.any():
                figures.append(
                    Figure(
                        metric="accepted_accuracy",
                        value=float(right[kept].mean()),
                        n=int(kept.sum()),
                        **where,
                    )
                )
    return figures


def out_of_distribution_figures(
    data: str, in_distribution: Outputs, ood: Outputs, scores: dict[ScoreName, Score]
) -> list[Figure]:
    """How well each score separates in-distribution from OOD test images, and what each policy refuses."""
    figures = []
    for name, score in scores.items():
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
    return figures
