"""What a pair of thresholds is expected to refuse, against the images that its histogram was made from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.model.expectation import read_joint_histogram
from service.model.pairs import CERTAINTY_EDGES, FAMILIARITY_EDGES, JointHistogram

# As coarse as an edge or finer: thresholds and images meet on edges and inside buckets.
shown = st.one_of(st.sampled_from(FAMILIARITY_EDGES), st.sampled_from(CERTAINTY_EDGES), st.floats(0, 1))
image = st.tuples(shown, shown)


def histogram_of(images: list[tuple[float, float]]) -> JointHistogram:
    counts = np.zeros((len(FAMILIARITY_EDGES), len(CERTAINTY_EDGES)), int)
    for familiarity, certainty in images:
        counts[np.searchsorted(FAMILIARITY_EDGES, familiarity), np.searchsorted(CERTAINTY_EDGES, certainty)] += 1
    return JointHistogram.model_validate(
        {
            "familiarity_edges": list(FAMILIARITY_EDGES),
            "certainty_edges": list(CERTAINTY_EDGES),
            "correct": counts.tolist(),
            "wrong": np.zeros_like(counts).tolist(),
        }
    )


@given(st.lists(image, min_size=1, max_size=30), shown, shown)
def test_the_true_refusals_lie_within_their_margins(
    images: list[tuple[float, float]], familiarity: float, certainty: float
) -> None:
    """Wherever in their buckets the images lie, the share refused for each reason is within that reason's margin."""
    expected = read_joint_histogram(histogram_of(images), familiarity, certainty)
    familiar = [image for image in images if image[0] > familiarity]
    unfamiliar = 1 - len(familiar) / len(images)
    unsure = sum(image[1] <= certainty for image in familiar) / len(images)
    assert abs(expected.unfamiliar - unfamiliar) <= expected.unfamiliar_margin + 1e-9
    assert abs(expected.unsure - unsure) <= expected.unsure_margin + 1e-9
    assert abs(expected.rate - unfamiliar - unsure) <= expected.margin + 1e-9


@pytest.mark.parametrize("familiarity", FAMILIARITY_EDGES)
def test_on_an_edge_nothing_is_guessed(familiarity: float) -> None:
    """Where both thresholds lie on edges, both margins are 0."""
    images = [(f, c) for f in np.linspace(0, 1, 40) for c in np.linspace(0, 1, 40)]
    expected = read_joint_histogram(histogram_of(images), familiarity, CERTAINTY_EDGES[5])
    assert (expected.unfamiliar_margin, expected.unsure_margin) == (0, 0)
    assert expected.unfamiliar == pytest.approx(sum(f <= familiarity for f, _ in images) / len(images))
