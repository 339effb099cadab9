"""A witness of familiarity is dropped only where OOD images show that it does harm."""

import numpy as np
import pytest

from training.calibration.witnesses import dropped_witnesses


def mean(scores, names):
    return np.mean([scores[name] for name in names], axis=0)


def seen(n=600, **gaps):
    """Own and OOD scores of each witness: normal, the OOD ones lower by its gap."""
    random = np.random.default_rng(0)
    own = {name: random.normal(0, 1, n) for name in gaps}
    return own, {name: random.normal(-gap, 1, n) for name, gap in gaps.items()}


def test_a_witness_that_misleads_is_dropped():
    """One that finds OOD images more familiar than own ones goes; two that help stay."""
    assert dropped_witnesses(*seen(good=2.0, fair=1.5, misled=-1.0), mean) == ["misled"]


def test_harmful_witnesses_go_one_by_one_the_worst_first():
    """Two are dropped in the order of the harm they do."""
    assert dropped_witnesses(*seen(good=2.5, misled=-0.5, reversed=-2.0), mean) == ["reversed", "misled"]


def test_what_chance_may_explain_changes_nothing():
    """Of 40 images each, a witness only a little worse than the other stays, and so do two equal ones."""
    assert dropped_witnesses(*seen(n=40, good=1.2, fair=0.9), mean) == []
    own, ood = seen(good=1.0)
    assert dropped_witnesses(own | {"same": own["good"]}, ood | {"same": ood["good"]}, mean) == []


def test_at_least_one_stays():
    """Of witnesses that all mislead, the least misleading one is left; a single one is never judged."""
    dropped = dropped_witnesses(*seen(bad=-0.3, worse=-1.0, worst=-2.0), mean)
    assert dropped == ["worst", "worse"]
    assert dropped_witnesses(*seen(alone=-3.0), mean) == []


def test_different_witnesses_are_refused():
    """Scores of one witness on own images and of another on OOD images cannot be compared."""
    own, ood = seen(a=1.0, b=1.0)
    for others in ({"a": ood["a"]}, {}):
        with pytest.raises(ValueError, match="expected the same ones"):
            dropped_witnesses(own, others, mean)
    with pytest.raises(ValueError, match="at least one"):
        dropped_witnesses({}, {}, mean)
