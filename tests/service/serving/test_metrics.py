"""What /metrics says after known requests: exact counts, and no label that does not come from a loaded model."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from service.model.bundle import Histogram, Policy, Score, load_bundle
from service.model.gate import Gate, Reading
from service.model.scores import HISTOGRAM_EDGES
from service.serving.metrics import Metrics, ModelMetrics
from service.serving.score_metrics import PairCounts, ScoreCounts
from tests.conftest import BLUE, GREY, RED, make_bundle
from tests.pair_bundles import DARK, make_pair_bundle
from tests.service.conftest import HeldService

PNG = {"Content-Type": "image/png"}
ROUTE = {"route": "/v1/predict"}

# Name in a scrape, and its labels; dashboards and alerts are written against these.
EXPORTED = {
    "confgate_requests_total": {"model", "version", "route", "outcome"},
    "confgate_predictions_total": {"model", "version", "decision", "reason"},
    "confgate_policy_decisions_total": {"model", "version", "policy", "score", "decision", "reason"},
    "confgate_rejections_by_label_total": {"model", "version", "label", "reason"},
    "confgate_confidence_bucket": {"model", "version", "score", "le"},
    "confgate_confidence_sum": {"model", "version", "score"},
    "confgate_confidence_count": {"model", "version", "score"},
    "confgate_reference_confidence_bucket": {"model", "version", "score", "le"},
    "confgate_policy_threshold": {"model", "version", "policy", "score"},
    "confgate_policy_expected_rejection_rate": {"model", "version", "policy", "score"},
    "confgate_policy_expected_refusals": {"model", "version", "policy", "score", "reason"},
    "confgate_policy_expected_refusals_margin": {"model", "version", "policy", "score", "reason"},
    "confgate_policy_calibration_images": {"model", "version", "policy", "score"},
    "confgate_policy_certainty_threshold": {"model", "version", "policy", "score"},
    "confgate_policy_active": {"model", "version", "policy", "score"},
    "confgate_request_duration_seconds_bucket": {"model", "version", "route", "le"},
    "confgate_queue_duration_seconds_bucket": {"model", "version", "graph", "le"},
    "confgate_decode_duration_seconds_bucket": {"model", "version", "le"},
    "confgate_inference_duration_seconds_bucket": {"model", "version", "graph", "le"},
    "confgate_batch_size_bucket": {"model", "version", "graph", "le"},
    "confgate_queue_images": {"model", "version", "graph"},
    "confgate_queue_limit_images": {"model", "version", "graph"},
    "confgate_device_info": {"model", "version", "requested", "active"},
    "confgate_inference_threads": {"model", "version"},
    "confgate_inference_workers": {"model", "version"},
    "confgate_largest_batch_images": {"model", "version"},
    "confgate_usable_cpus": set(),
    "confgate_decode_threads": set(),
    "confgate_model_ready": {"model", "version"},
    "confgate_model_load_seconds": {"model", "version"},
    "confgate_model_load_failures_total": {"model"},
    "confgate_policy_expected_rejection_margin": {"model", "version", "policy", "score"},
    "confgate_gate_ignored": {"model", "version"},
    "confgate_requests_in_flight": set(),
    "confgate_captured_images_total": {"model", "version"},
    "confgate_capture_dropped_total": {"reason"},
    "confgate_capture_images": set(),
    "confgate_capture_bytes": set(),
    "confgate_unauthorised_requests_total": set(),
    "confgate_log_lines_dropped_total": set(),
    "process_resident_memory_bytes": set(),
}


def test_known_requests_give_known_counts(held_service: HeldService) -> None:
    """Two accepted images, one rejected and one bad request are counted as exactly that."""
    service, client = held_service, held_service.client
    files = [("f", ("a", RED)), ("f", ("b", GREY))]
    assert client.post("/v1/predict", files=files).status_code == 200
    assert client.post("/v1/predict", content=BLUE, headers=PNG, params={"preprocess": "true"}).status_code == 200
    assert client.post("/v1/predict", content=b"text", headers=PNG).status_code == 422
    assert service.metric("confgate_requests_total", **ROUTE, outcome="ok") == 2
    assert service.metric("confgate_requests_total", **ROUTE, outcome="invalid") == 1
    assert service.metric("confgate_request_duration_seconds_count", **ROUTE) == 3
    assert service.metric("confgate_predictions_total", decision="accepted") == 2
    assert service.metric("confgate_predictions_total", decision="rejected") == 1
    assert service.metric("confgate_rejections_by_label_total", label="red") == 1
    assert service.metric("confgate_decode_duration_seconds_count") == 4
    assert service.metric("confgate_batch_size_sum", graph="forward") == 2
    assert service.metric("confgate_batch_size_sum", graph="perturbed") == 1
    assert service.metric("confgate_inference_duration_seconds_count", graph="perturbed") == 1
    assert service.metric("confgate_queue_duration_seconds_count", graph="forward") == 2
    assert service.metric("confgate_queue_images", graph="forward") == 0
    assert service.metric("confgate_queue_limit_images", graph="forward") == service.settings.max_queue_images
    assert service.metric("confgate_device_info", requested="cpu", active="cpu") == 1
    assert service.metric("confgate_model_ready") == 1


@pytest.fixture
def pair_service(models: Path) -> Iterator[HeldService]:
    make_pair_bundle(models)
    service = HeldService(models)
    yield service
    service.stop()


def test_refusals_are_counted_by_reason(pair_service: HeldService) -> None:
    """What was answered, and what each pair would have decided, is counted by reason."""
    for image in (RED, GREY, DARK, DARK):
        assert pair_service.client.post("/v1/predict", content=image, headers=PNG).status_code == 200
    reasons = {"accepted": ("none",), "rejected": ("unfamiliar", "unsure")}

    def by_reason(name: str, **labels: str) -> dict[str, float]:
        return {
            reason: pair_service.metric(name, decision=decision, reason=reason, **labels)
            for decision, given in reasons.items()
            for reason in given
        }

    assert by_reason("confgate_predictions_total") == {"none": 1, "unfamiliar": 2, "unsure": 1}
    assert pair_service.metric("confgate_rejections_by_label_total", label="red", reason="unfamiliar") == 2
    assert pair_service.metric("confgate_rejections_by_label_total", label="red", reason="unsure") == 1
    for policy, counted in (
        ("balanced", {"none": 1, "unfamiliar": 2, "unsure": 1}),
        ("foreign_only", {"none": 2, "unfamiliar": 2, "unsure": 0}),
        ("accept_all", {"none": 4, "unfamiliar": 0, "unsure": 0}),
    ):
        assert by_reason("confgate_policy_decisions_total", policy=policy, score="pair") == counted
    # A single score has one reason.
    assert by_reason("confgate_policy_decisions_total", policy="misclassified", score="certainty") == {
        "none": 1,
        "unfamiliar": 0,
        "unsure": 3,
    }
    pair = {"policy": "balanced", "score": "pair"}
    assert pair_service.metric("confgate_policy_expected_rejection_rate", **pair) == pytest.approx(0.15)
    assert pair_service.metric("confgate_policy_expected_refusals", **pair, reason="unsure") == 0.1
    assert pair_service.metric("confgate_policy_calibration_images", **pair) == 144
    assert pair_service.metric("confgate_policy_active", **pair) == 1
    assert pair_service.metric("confgate_policy_active", policy="misclassified") == 0


def test_every_policy_of_every_computed_score_is_counted(held_service: HeldService) -> None:
    """For each image it is counted what each policy would have decided, whichever gate answered."""
    for image in (RED, GREY):
        params = {"score": "max_softmax", "policy": "tpr95"}
        assert held_service.client.post("/v1/predict", content=image, headers=PNG, params=params).status_code == 200

    def decided(policy: str, score: str, decision: str) -> float:
        labels = {"policy": policy, "score": score, "decision": decision}
        return held_service.metric("confgate_policy_decisions_total", **labels)

    for score in ("confidence", "max_softmax"):
        for policy in ("misclassified", "tpr95"):
            assert (decided(policy, score, "accepted"), decided(policy, score, "rejected")) == (1, 1)
    # The forward graph does not compute it, so nothing is counted for it.
    assert decided("tpr95", "confidence_preprocessed", "rejected") == 0


def test_live_and_reference_histograms_share_their_edges(held_service: HeldService) -> None:
    """Scores of answered images fall into the same buckets as the calibration images'."""
    assert held_service.client.post("/v1/predict", content=RED, headers=PNG).status_code == 200
    scrape = held_service.client.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(scrape)}
    buckets: dict[str, dict[str, float]] = {}
    for name in ("confgate_confidence", "confgate_reference_confidence"):
        buckets[name] = {
            sample.labels["le"]: sample.value
            for sample in families[name].samples
            if sample.name.endswith("_bucket") and sample.labels["score"] == "confidence"
        }
    live, reference = buckets.values()
    assert list(live) == list(reference) == [*map(str, HISTOGRAM_EDGES), "+Inf"]
    assert [le for le, count in live.items() if count == 0][-1] == "0.995"  # c = sigmoid(6) = 0.9975
    assert live["+Inf"] == 1
    assert reference["+Inf"] == reference["1.0"] == 100


def test_everything_that_dashboards_use_is_exported(pair_service: HeldService) -> None:
    """Each metric of the design has exactly its labels."""
    client = pair_service.client
    client.post("/v1/predict", content=GREY, headers=PNG)
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            assert labels.setdefault(sample.name, set(sample.labels)) == set(sample.labels), sample.name
    assert {name: labels.get(name) for name in EXPORTED} == EXPORTED
    unknown = {name for name in labels if name.startswith("confgate_")} - set(EXPORTED)
    assert all(re.search(r"_(created|sum|count)$", name) for name in unknown), unknown


def test_labels_never_come_from_requests(held_service: HeldService) -> None:
    """What a client asks for does not become a label value, so that it cannot fill Prometheus."""
    for query in ("model=evil", "policy=evil", "score=evil"):
        held_service.client.post(f"/v1/predict?{query}", content=RED, headers=PNG)
    held_service.client.get("/v1/models/evil")
    assert "evil" not in held_service.client.get("/metrics").text


@pytest.mark.parametrize("classes", [3, 101])
def test_rejections_by_label_are_for_few_classes(models: Path, classes: int) -> None:
    """Up to 100 classes each has its own counter; beyond that there is none."""
    manifest = load_bundle(make_bundle(models).folder).manifest
    manifest = manifest.model_copy(update={"labels": tuple(f"class {i}" for i in range(classes))})
    assert len(ModelMetrics(Metrics(), manifest).rejected_labels) == (classes if classes <= 100 else 0)


def test_a_score_on_a_threshold_counts_as_rejected() -> None:
    """The counts follow the gate: equal to the threshold is rejected, also where two policies share it."""
    policies = {
        name: Policy(threshold=threshold, expected_rejection_rate=0.1, n=1, how="test")
        for name, threshold in (("strict", 2.0), ("lax", 1.0), ("same", 1.0))
    }
    counts = ScoreCounts(Score(reference=Histogram(counts=(1,) * len(HISTOGRAM_EDGES)), policies=policies))
    for score in (0.5, 1.0, 1.5, 2.0, 2.5):
        counts.add(score, 0.5)
    assert counts.policies[-1] == "strict"
    assert counts.gaps == [2, 0, 2, 1]
    assert counts.buckets[HISTOGRAM_EDGES.index(0.5)] == 5


# Few values, so that scores lie on thresholds and pairs share them.
FEW = st.sampled_from((-1.0, 0.0, 0.5, 2.0))
PAIRS = st.lists(st.tuples(*[st.just(-math.inf) | FEW] * 2), max_size=5)


@given(PAIRS, st.lists(st.tuples(FEW, FEW), max_size=20))
def test_pairs_are_counted_as_their_gates_decide(
    thresholds: list[tuple[float, float]], images: list[tuple[float, float]]
) -> None:
    """However many pairs share a threshold, the counts of each are those of its gate, image by image."""
    gates = {str(i): Gate("typicality", str(i), low, 0.0, high, 0.0) for i, (low, high) in enumerate(thresholds)}
    counts = PairCounts(gates)
    readings = [Reading(0, [1.0], {"typicality": (t, 0.5), "certainty": (c, 0.5)}) for t, c in images]
    for reading in readings:
        counts.add(reading.scores)
    decided = {name: Counter(gate.reason_to_refuse(reading) for reading in readings) for name, gate in gates.items()}
    assert {name: Counter(counted) for name, counted in counts.decisions()} == decided
