"""Typicality is a p-value: checked against counting, on new images, and over HTTP."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.model.bundle import load_bundle
from service.model.gate import gates_of
from service.model.scores import ScoreName, score_images, sigmoid
from service.model.typicality import LEVELS, QUANTILES, Ranks, TypicalityReference, lowest_rank, quantiles_of
from service.serving.gate_changes import GateChange, gate_of
from tests.conftest import GREY, RED, Service, make_bundle


def reference_of(columns: dict[str, np.ndarray]) -> TypicalityReference:
    n = len(next(iter(columns.values())))
    ranks = {name: Ranks.of_quantiles(quantiles_of(values), n) for name, values in columns.items()}
    return TypicalityReference(ranks, Ranks.of_quantiles(quantiles_of(lowest_rank(ranks, columns)), n))


def two_scores(n: int, seed: int) -> dict[str, np.ndarray]:
    """Two scores of different scale that know something of each other."""
    random = np.random.default_rng(seed)
    common = random.normal(0, 1, n)
    return {"confidence": 2 + common + random.normal(0, 1, n), "energy": 12 + 3 * common + random.normal(0, 3, n)}


def test_ranks_are_those_of_counting() -> None:
    """A rank is within a hundredth of the counted share at or below, and much nearer at the low end."""
    values = np.random.default_rng(0).gumbel(0, 3, 4_000)
    rank = Ranks.of_quantiles(quantiles_of(values), len(values))
    asked = np.linspace(values.min() - 1, values.max() + 1, 500)
    counted = (values[:, None] <= asked).mean(axis=0)
    assert np.abs(rank(asked) - counted).max() < 0.01
    low = counted < 0.02
    assert low.sum() > 20
    assert np.abs(rank(asked) - counted)[low].max() < 0.001


def test_p_values_of_new_images_are_what_they_say() -> None:
    """Of new images like the calibration images, a share p has a p-value of at most p: for 1 in 200 and for half."""
    reference = reference_of(two_scores(20_000, 0))
    p = sigmoid(reference.log_odds(two_scores(100_000, 1)))
    for share in (0.005, 0.05, 0.5):
        assert np.mean(p <= share) == pytest.approx(share, rel=0.15)


def test_unusual_in_either_score_is_unusual() -> None:
    """An image that is low in one score alone has a low p-value; one that is ordinary in both has not."""
    reference = reference_of(two_scores(5_000, 0))
    ask = {"confidence": np.array([2.0, -9.0, 2.0]), "energy": np.array([12.0, 12.0, -20.0])}
    ordinary, doubtful, strange = sigmoid(reference.log_odds(ask))
    assert ordinary > 0.3
    assert doubtful < 0.001
    assert strange < 0.001


def test_log_odds_are_finite_and_rise() -> None:
    """Beyond all calibration images the score stays finite, and it never falls as both scores rise."""
    reference = reference_of(two_scores(300, 0))
    steps = np.linspace(-100, 100, 2_001)
    odds = reference.log_odds({"confidence": steps, "energy": steps + 10})
    assert np.isfinite(odds).all()
    assert np.all(np.diff(odds) >= 0)
    assert 0.5 / 301 <= sigmoid(odds[0]) <= 2.5 / 301  # the lowest in each score are the most unusual, up to two images


def test_equal_calibration_scores_rank_as_one() -> None:
    """Where all calibration images have one score, an image at it is ordinary and one below it is not."""
    rank = Ranks.of_quantiles(quantiles_of(np.full(50, 3.0)), 50)
    assert rank([2.9, 3.0, 3.1]) == pytest.approx([0.5 / 51, 50.5 / 51, 50.5 / 51])


def test_levels_are_the_contract() -> None:
    """257 levels from 0 to 1, squares, so that the low end is told apart best: bundles depend on them."""
    assert len(LEVELS) == QUANTILES == 257
    assert LEVELS[[0, 1, 128, 256]] == pytest.approx([0, 1 / 65536, 0.25, 1])


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service whose one model has every score."""
    models = tmp_path_factory.mktemp("rich") / "models"
    make_bundle(models, all_scores=True)
    running = Service(models).wait_until_serving()
    with httpx.Client(base_url=running.url, timeout=30, verify=False, trust_env=False) as session:
        yield session
    assert running.stop() == 0


def ask(client: httpx.Client, image: bytes, **query: str) -> dict[str, Any]:
    response = client.post("/v1/predict", content=image, params=query)
    assert response.status_code == 200, response.text
    prediction: dict[str, Any] = response.json()["predictions"][0]
    return prediction


@pytest.mark.parametrize(("score", "threshold", "location"), [("energy", 5.0, 6.0), ("max_logit", 4.0, 5.0)])
def test_relative_scores_decide_on_their_own_scale(
    rich: httpx.Client, score: str, threshold: float, location: float
) -> None:
    """A red image has logits 10, 0, 0 and passes; grey has three of 5.02; both are shown relative to the median."""
    for image, logits in ((RED, [10.0, 0, 0]), (GREY, [128 / 25.5] * 3)):
        value = float(score_images(score, {"logits": np.array([logits], np.float32)})[0])  # type: ignore[arg-type]
        answer = ask(rich, image, score=score)
        assert answer["score"] == score
        assert answer["in_distribution"] is (value > threshold)
        assert answer["score_value"] == pytest.approx(1 / (1 + math.exp(-(value - location) / 2)), rel=1e-6)
        assert answer["threshold"] == pytest.approx(1 / (1 + math.exp(0.5)), rel=1e-9)


def test_every_answer_carries_the_p_value(rich: httpx.Client) -> None:
    """Whatever is compared, `typicality` tells how unusual an image is: red is ordinary, grey (c as low as any) not."""
    red, grey = ask(rich, RED), ask(rich, GREY, score="typicality")
    assert red["score"] == "confidence"
    assert red["typicality"] > 0.5
    share = (0.5 / 101) ** (2 / 3)  # of the made-up lowest ranks, u^1.5, at or below the lowest there is
    assert grey["typicality"] == grey["score_value"] == pytest.approx((100 * share + 0.5) / 101, rel=0.02)
    assert grey["in_distribution"] is False


def test_models_show_what_is_new(rich: httpx.Client) -> None:
    """/v1/models tells how a relative score is shown, what typicality compares with, and each policy's interval."""
    scores = rich.get("/v1/models/colours").json()["versions"][0]["scores"]
    assert scores["energy"]["display"] == {"location": 6.0, "scale": 2.0}
    assert set(scores["typicality"]["typicality"]["components"]) == {"confidence", "energy"}
    assert scores["confidence"]["display"] is None
    assert scores["confidence"]["policies"]["tpr95"]["expected_rejection_interval"] == [0.04, 0.18]


@pytest.mark.parametrize("score", ["energy", "confidence"])
def test_a_threshold_that_people_see_is_compared_where_the_score_lies(tmp_path: Path, score: ScoreName) -> None:
    """An operator's threshold goes from the shown scale to the compared one and back, for relative scores too."""
    manifest = load_bundle(make_bundle(tmp_path / "models", all_scores=True).folder).manifest
    in_force = gates_of(manifest)["confidence"]["misclassified"]
    asked = gate_of(GateChange(score=score, threshold=0.3), manifest, in_force)
    assert float(manifest.scores[score].shown(asked.threshold)) == pytest.approx(0.3, rel=1e-12)
    again = gate_of(GateChange(score=score, threshold_raw=asked.threshold), manifest, in_force)
    assert again.threshold_shown == pytest.approx(0.3, rel=1e-12)
    if score == "energy":
        assert asked.threshold == pytest.approx(6.0 + 2.0 * math.log(0.3 / 0.7))
