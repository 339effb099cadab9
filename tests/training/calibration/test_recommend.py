"""Which score is recommended: the better one where the difference is real, else the usual one."""

import numpy as np

from service.model.bundle import Histogram, Policy, Score
from service.model.scores import HISTOGRAM_EDGES
from training.calibration.calibrate import Calibrated
from training.calibration.halves import halves_of
from training.calibration.pair_policies import PairScores
from training.calibration.pairs import make_pairs
from training.calibration.policies import USUAL
from training.calibration.recommend import recommendations

ANY = Score(
    reference=Histogram(counts=(1,) * len(HISTOGRAM_EDGES)),
    policies={"misclassified": Policy(threshold=0, expected_rejection_rate=0, n=1, how="not of interest")},
)


def made_of(scores, inside, right, outside):
    """A calibration with these scores; its pairs play no part here."""
    pairs = make_pairs(
        PairScores(np.zeros(len(right)), np.zeros(len(right)), right),
        halves_of(len(right)),
        PairScores(np.zeros(10), np.zeros(10)),
        {},
        USUAL,
    )
    return Calibrated(scores, pairs.pairs, pairs.default, inside, right, outside, 1.0, None, "")


def calibrated(inside_gap, outside_gap, n=400):
    """Two classes; both scores separate right from wrong and in-distribution from OOD by the given gaps."""
    random = np.random.default_rng(0)
    right = random.random(n) < 0.7

    def outputs(confidence, margin):
        logits = np.stack([margin / 2, -margin / 2], axis=1).astype(np.float32)  # log-odds of max: |margin|
        return {"logits": logits, "confidence_logit": confidence.astype(np.float32)}

    def column(gap, size):
        return 10 + gap + random.normal(0, 1, size)

    inside = outputs(column(np.where(right, 1.0, 0.0), n), column(np.where(right, inside_gap, 0.0), n))
    outside = outputs(column(-1.0, n), column(-outside_gap, n))
    scores = {"confidence": ANY, "max_softmax": ANY}
    return made_of(scores, inside, right, {"other": outside})


def test_a_score_that_separates_better_is_recommended_for_its_purpose():
    """Max softmax is better at mistakes, confidence at OOD images: each is recommended for its purpose."""
    found = recommendations(calibrated(3.0, -1.0), "confidence")
    assert {purpose: item.score for purpose, item in found.items()} == {"ood": "confidence", "mistakes": "max_softmax"}
    assert found["mistakes"].gain[0] > 0
    assert found["mistakes"].default.policy == "misclassified"
    assert "use max_softmax: max_softmax is +" in str(found["mistakes"])
    assert "use confidence: it separates best" in str(found["ood"])


def test_what_chance_may_explain_changes_nothing():
    """Where both scores are equally good, the usual one stays, whichever has the higher figure here."""
    for usual in ("confidence", "max_softmax"):
        for item in recommendations(calibrated(1.0, 1.0), usual).values():
            assert item.score == usual
            assert item.gain is None or (item.gain[0] <= 0 and "which chance may explain" in str(item))


def test_without_ood_images_only_mistakes_are_judged():
    """No figure is made up for what was not measured."""
    sample = calibrated(1.0, 1.0)
    alone = made_of(sample.scores, sample.in_distribution, sample.right, {})
    assert list(recommendations(alone, "confidence")) == ["mistakes"]
