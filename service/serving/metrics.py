"""What Prometheus is told. All names begin with confgate_; label values come only from loaded models.

One registry per application. Per request there are a few calls on children that were bound when the model was loaded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from service.logs import dropped_lines
from service.model.expectation import Expectation, expectation_of
from service.model.gate import CUSTOM, Gate, Reason, gates_of, pairs_of
from service.model.manifest import GraphName, Manifest
from service.model.scores import ScoreName
from service.serving.parallelism import Parallelism
from service.serving.score_metrics import (
    ACCEPTED,
    MODEL,
    REASONS,
    PairCounts,
    ScoreCollector,
    ScoreCounts,
    reasons_of,
    score_label,
)

DURATIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MAX_LABELLED_CLASSES = 100
CAPTURE_DROPS = ("queue_full", "duplicate", "error")
OUTCOMES = ("ok", "invalid", "shed", "timeout", "cancelled", "error")
PREDICT_ROUTE, INFER_ROUTE = "/v1/predict", "/v2/models/{model}/infer"


class ModelMetrics:
    """The children of one model version, bound once."""

    def __init__(self, metrics: "Metrics", manifest: Manifest) -> None:
        self.labels = (manifest.name, str(manifest.version))
        self._metrics = metrics
        self._manifest = manifest
        # Exported as 0 from the start: Prometheus sees no rate in a counter that appears with a 1.
        self.requests = {route: metrics.bind_requests(self.labels, route) for route in (PREDICT_ROUTE, INFER_ROUTE)}
        self.accepted = metrics.predictions.labels(*self.labels, "accepted", ACCEPTED)
        self.rejected = {reason: metrics.predictions.labels(*self.labels, "rejected", reason) for reason in REASONS}
        self.decode = metrics.decode_seconds.labels(*self.labels)
        self.captured = metrics.captured.labels(*self.labels)
        self.rejected_labels = (
            [
                {reason: metrics.rejections_by_label.labels(*self.labels, label, reason) for reason in REASONS}
                for label in manifest.labels
            ]
            if len(manifest.labels) <= MAX_LABELLED_CLASSES
            else []
        )
        self.scores = {name: ScoreCounts(score) for name, score in manifest.scores.items()}
        pairs = pairs_of(manifest)
        self.pairs = PairCounts(pairs)
        self._has_pairs = bool(pairs)
        self._gates = [
            *(gate for of_score in gates_of(manifest).values() for gate in of_score.values()),
            *pairs.values(),
        ]
        self.graphs: list[GraphName] = []
        self.custom_score: str | None = None
        self.custom_decisions: dict[Reason | None, int] = {None: 0, "unfamiliar": 0, "unsure": 0}

    def loaded(self, seconds: float, requested: str, active: str, parallelism: Parallelism, largest_batch: int) -> None:
        """Puts this version's counts into scrapes, in place of those of an earlier bundle with the same version."""
        metrics, manifest = self._metrics, self._manifest
        metrics.serve(self)
        for gate in self._gates:
            metrics.show_policy((*self.labels, gate.policy, score_label(gate)), gate, expectation_of(manifest, gate))
        metrics.device_info.labels(*self.labels, requested, active).set(1)
        metrics.inference_threads.labels(*self.labels).set(parallelism.threads)
        metrics.inference_workers.labels(*self.labels).set(parallelism.workers)
        metrics.largest_batch.labels(*self.labels).set(largest_batch)
        metrics.load_seconds.labels(*self.labels).set(seconds)
        metrics.model_ready.labels(*self.labels).set(1)
        metrics.load_failures.labels(self.labels[0])  # exported as 0 from the start

    def count_image(
        self, scores: Mapping[ScoreName, tuple[float, float]], class_id: int, reason: Reason | None
    ) -> None:
        """One answered image: each score it was given (unbounded, shown), and why it was refused, if it was."""
        for name, (score, shown) in scores.items():
            self.scores[name].add(score, shown)
        if self._has_pairs:
            self.pairs.add(scores)
        if reason is None:
            self.accepted.inc()
        else:
            self.rejected[reason].inc()
            if self.rejected_labels:
                self.rejected_labels[class_id][reason].inc()

    def count_custom(self, reason: Reason | None) -> None:
        """What the operator's own threshold, or pair of them, decides about an answered image."""
        self.custom_decisions[reason] += 1

    def show_active(self, active: Gate, ignored: bool) -> None:
        """Which of the bundle's policies is in use, if it is one of them."""
        for gate in self._gates:
            labels = (*self.labels, gate.policy, score_label(gate))
            self._metrics.policy_active.labels(*labels).set(gate == active)
        self._metrics.gate_ignored.labels(*self.labels).set(ignored)

    def show_custom(self, gate: Gate, expected: Expectation) -> None:
        """An operator's own threshold, or pair of them, is in use."""
        self.drop_custom()
        self.custom_score = score_label(gate)
        labels = (*self.labels, CUSTOM, self.custom_score)
        self._metrics.show_policy(labels, gate, expected)
        self._metrics.policy_active.labels(*labels).set(1)

    def drop_custom(self) -> None:
        """The operator's own threshold is no longer in use. Its counts stay, and go on if there is one again."""
        if self.custom_score is None:
            return
        labels = (*MODEL, "policy", "score")
        custom = dict(zip(labels, (*self.labels, CUSTOM, self.custom_score), strict=True))
        for gauge in self._metrics.of_policy:
            gauge.remove_by_labels(custom)
        self.custom_score = None

    def queue(self, graph: GraphName, limit: int, images: Callable[[], float]) -> "QueueMetrics":
        metrics, labels = self._metrics, (*self.labels, graph)
        self.graphs.append(graph)
        metrics.queue_limit.labels(*labels).set(limit)
        metrics.queue_images.labels(*labels).set_function(images)
        return QueueMetrics(metrics, labels)

    def retired(self) -> None:
        """Removes everything of this version, unless another bundle with the same version took its place."""
        self._metrics.forget(self)


class QueueMetrics:
    """Hears of each batch of one queue."""

    def __init__(self, metrics: "Metrics", labels: tuple[str, ...]) -> None:
        self._wait = metrics.queue_seconds.labels(*labels)
        self._inference = metrics.inference_seconds.labels(*labels)
        self._batch_size = metrics.batch_size.labels(*labels)

    def batch_done(self, waits: Sequence[float], seconds: float) -> None:
        self._inference.observe(seconds)
        self._batch_size.observe(len(waits))
        for wait in waits:
            self._wait.observe(wait)


class LogCollector(Collector):
    """What the log counts itself, because it must not know of metrics."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        text = "Log lines that were dropped, because nobody read them in time."
        yield CounterMetricFamily("confgate_log_lines_dropped", text, dropped_lines())


class Metrics:
    """Every metric of one app."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._served: dict[tuple[str, str], ModelMetrics] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"confgate_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"confgate_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, edges: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"confgate_{name}", text, labels, buckets=edges, registry=registry)

        policy, graph = (*MODEL, "policy", "score"), (*MODEL, "graph")
        self.requests = counter("requests", "Requests for predictions.", *MODEL, "route", "outcome")
        self.predictions = counter("predictions", "Images, by what was answered.", *MODEL, "decision", "reason")
        self.rejections_by_label = counter(
            "rejections_by_label", "Rejected images, by the class they were taken for.", *MODEL, "label", "reason"
        )
        self.policy_threshold = gauge(
            "policy_threshold", "Threshold, shown between 0 and 1; of a pair that on familiarity.", *policy
        )
        self.policy_certainty = gauge(
            "policy_certainty_threshold", "Threshold of a pair on certainty, shown between 0 and 1.", *policy
        )
        self.policy_expected = gauge(
            "policy_expected_rejection_rate", "Share of the calibration images that are rejected.", *policy
        )
        self.policy_refusals = gauge(
            "policy_expected_refusals", "That share by the reason of the refusal.", *policy, "reason"
        )
        self.policy_margin = gauge(
            "policy_expected_rejection_margin", "How far off that may be: a custom threshold lies in a bucket.", *policy
        )
        self.policy_refusals_margin = gauge(
            "policy_expected_refusals_margin", "How far off each of the expected refusals may be.", *policy, "reason"
        )
        self.gate_ignored = gauge("gate_ignored", "1 where what an operator set cannot be in force.", *MODEL)
        self.policy_images = gauge("policy_calibration_images", "Images the expectation rests on.", *policy)
        self.policy_active = gauge("policy_active", "1 where requests that name no policy use it.", *policy)
        self.request_seconds = histogram(
            "request_duration_seconds", "From a request's first byte to its answer.", DURATIONS, *MODEL, "route"
        )
        self.decode_seconds = histogram("decode_duration_seconds", "Decoding one image.", DURATIONS, *MODEL)
        self.queue_seconds = histogram("queue_duration_seconds", "An image's wait for its batch.", DURATIONS, *graph)
        self.inference_seconds = histogram("inference_duration_seconds", "Computing one batch.", DURATIONS, *graph)
        self.batch_size = histogram("batch_size", "Images in a batch.", BATCH_SIZES, *graph)
        self.queue_images = gauge("queue_images", "Images let in and not yet being computed.", *graph)
        self.queue_limit = gauge("queue_limit_images", "Images that may wait at most.", *graph)
        self.device_info = gauge("device_info", "Device asked for and device in use.", *MODEL, "requested", "active")
        self.inference_threads = gauge("inference_threads", "Threads that compute a batch which runs alone.", *MODEL)
        self.inference_workers = gauge("inference_workers", "Batches that are computed at the same time.", *MODEL)
        self.largest_batch = gauge("largest_batch_images", "Most images in a batch of the forward graph.", *MODEL)
        self.model_ready = gauge("model_ready", "1 while this version is served.", *MODEL)
        self.load_seconds = gauge("model_load_seconds", "Time to verify, open and warm up.", *MODEL)
        self.load_failures = counter("model_load_failures", "Bundles that were refused.", "model")
        self.in_flight = gauge("requests_in_flight", "Requests being answered, this scrape among them.")
        self.captured = counter("captured_images", "Refused images that were kept.", *MODEL)
        self.capture_dropped = counter("capture_dropped", "Refused images that were to be kept and were not.", "reason")
        for reason in CAPTURE_DROPS:
            self.capture_dropped.labels(reason)
        self.capture_images = gauge("capture_images", "Images in the capture folder.")
        self.capture_bytes = gauge("capture_bytes", "Bytes in the capture folder.")
        self.usable_cpus = gauge("usable_cpus", "CPUs that this process may use, by affinity and quota, rounded up.")
        self.decode_threads = gauge("decode_threads", "Threads that decode images.")
        self.refused_keys = counter("unauthorised_requests", "Requests without a key, or with an unknown one.")
        self.of_policy = (
            *(self.policy_threshold, self.policy_certainty, self.policy_expected, self.policy_refusals),
            *(self.policy_margin, self.policy_refusals_margin, self.policy_images, self.policy_active),
        )
        self._described = (*self.of_policy, self.gate_ignored, self.device_info)
        self._of_graph: tuple[Gauge | Histogram, ...] = (
            *(self.queue_images, self.queue_limit, self.queue_seconds, self.inference_seconds, self.batch_size),
        )
        self._of_version: tuple[Counter | Gauge | Histogram, ...] = (
            *(self.requests, self.predictions, self.rejections_by_label, *self._described, self.request_seconds),
            *(self.decode_seconds, *self._of_graph, self.model_ready, self.load_seconds, self.captured),
            *(self.inference_threads, self.inference_workers, self.largest_batch),
        )
        registry.register(LogCollector())
        registry.register(ScoreCollector(lambda: list(self._served.values())))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def show_policy(self, labels: tuple[str, ...], gate: Gate, expected: Expectation) -> None:
        """The thresholds of a policy, and what calibration expects of it; the labels end with its name and score."""
        self.policy_threshold.labels(*labels).set(gate.threshold_shown)
        if gate.certainty_threshold_shown is not None:
            self.policy_certainty.labels(*labels).set(gate.certainty_threshold_shown)
        self.policy_expected.labels(*labels).set(expected.rate)
        for reason in reasons_of(labels[-1]):
            share, margin = expected.of(reason)
            self.policy_refusals.labels(*labels, reason).set(share)
            self.policy_refusals_margin.labels(*labels, reason).set(margin)
        self.policy_margin.labels(*labels).set(expected.margin)
        self.policy_images.labels(*labels).set(expected.n)

    def serve(self, model: ModelMetrics) -> None:
        earlier = self._served.get(model.labels)
        if earlier is not None:
            # The policies, the device and the graphs of the earlier bundle may not be those of this one.
            self._remove(model.labels, self._described)
            for graph in set(earlier.graphs) - set(model.graphs):
                self._release(model.labels, graph)
                for metric in self._of_graph:
                    metric.remove(*model.labels, graph)
        self._served[model.labels] = model

    def forget(self, model: ModelMetrics) -> None:
        if self._served.get(model.labels) is model:
            del self._served[model.labels]
            for graph in model.graphs:
                self._release(model.labels, graph)
            self._remove(model.labels, self._of_version)

    def _release(self, labels: tuple[str, str], graph: GraphName) -> None:
        """A gauge and its function hold each other, and through them the queue and its session."""
        self.queue_images.labels(*labels, graph).set_function(float)

    def _remove(self, labels: tuple[str, str], metrics: Iterable[Counter | Gauge | Histogram]) -> None:
        for metric in metrics:
            metric.remove_by_labels(dict(zip(MODEL, labels, strict=True)))

    def bind_requests(self, model: tuple[str, str], route: str) -> "RequestMetrics":
        return RequestMetrics(
            {outcome: self.requests.labels(*model, route, outcome) for outcome in OUTCOMES},
            self.request_seconds.labels(*model, route),
        )


class RequestMetrics:
    """Outcome and duration of one route's requests for one model version; both empty where none was found."""

    __slots__ = ("_outcomes", "_seconds")

    def __init__(self, outcomes: Mapping[str, Counter], seconds: Histogram) -> None:
        self._outcomes = outcomes
        self._seconds = seconds

    def done(self, outcome: str, seconds: float) -> None:
        self._outcomes[outcome].inc()
        self._seconds.observe(seconds)
