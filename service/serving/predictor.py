"""The main path of a request: decode → batch → gate."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial as bound
from typing import NamedTuple

import numpy as np

from service.errors import InferenceFailed, MalformedRequest, RequestError
from service.model.bundle import Bundle, GraphName, Manifest
from service.model.images import Pixels, decode
from service.model.scores import PREPROCESSED_SCORES, Outputs, ScoreName, accept, softmax
from service.model.session import ActiveDevice, Device
from service.serving.batcher import Batcher, Ticket
from service.serving.decode_pool import Decoders
from service.serving.inline_execution import Solitude
from service.serving.metrics import CUSTOM, ModelMetrics
from service.serving.served_model import Leases


class Reading(NamedTuple):
    """What a graph says about one image: scores are (unbounded, shown between 0 and 1)."""

    class_id: int
    probabilities: list[float]
    scores: dict[ScoreName, tuple[float, float]]


class Gate(NamedTuple):
    """A score, and the threshold that a policy puts on it."""

    score: ScoreName
    policy: str
    threshold: float
    threshold_shown: float


class Decision(NamedTuple):
    """One image's reading, and whether the gate lets it pass."""

    reading: Reading
    accepted: bool


@dataclass(slots=True)
class GateOverride:
    """What an operator has set instead of the bundle's default. `service.serving.gate_overrides` assigns it, as a whole."""

    gate: Gate | None = None
    ignored: str | None = None  # why something that was set is not in force

    @property
    def custom(self) -> Gate | None:
        gate = self.gate
        return gate if gate is not None and gate.policy == CUSTOM else None


@dataclass(frozen=True, slots=True)
class Model:
    """One served version of a bundle."""

    bundle: Bundle
    queues: Mapping[GraphName, Batcher[Reading]]
    gates: Mapping[ScoreName, Mapping[str, Gate]]
    metrics: ModelMetrics
    requested_device: Device
    device: ActiveDevice
    override: GateOverride = field(default_factory=GateOverride)
    leases: Leases = field(default_factory=Leases)

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest

    @property
    def default_gate(self) -> Gate:
        """What the bundle ships with."""
        default = self.manifest.default
        return self.gates[default.score][default.policy]

    @property
    def active_gate(self) -> Gate:
        """What decides for requests that name nothing else."""
        return self.override.gate or self.default_gate

    def choose_gate(self, score: str | None, policy: str | None, preprocess: bool) -> Gate:
        """The gate a request asks for; what it leaves open is the operator's choice, or the bundle's default."""
        active = self.active_gate
        preprocessed = self._preprocessed_score() if preprocess else None
        score = score or preprocessed or active.score
        if score == active.score and policy in (None, active.policy):
            return active
        # Any string may be asked for.
        policies: Mapping[str, Gate] | None = self.gates.get(score)  # type: ignore[call-overload]
        if policies is None:
            raise MalformedRequest(f"score {score!r} is unknown; this model has {', '.join(self.gates)}")
        if policy is None:
            # The policy in use belongs to another score, and need not exist here; nor need the bundle's default.
            default = self.manifest.default.policy
            return policies.get(active.policy) or policies.get(default) or next(iter(policies.values()))
        gate = policies.get(policy)
        if gate is None:
            raise MalformedRequest(f"policy {policy!r} is unknown; score {score} has {', '.join(policies)}")
        return gate

    def close(self) -> None:
        for queue in self.queues.values():
            queue.close()

    def _preprocessed_score(self) -> ScoreName:
        score = self.manifest.preprocessed_score
        if score is None:
            raise MalformedRequest("preprocess=true needs a perturbed graph, and this model has none")
        return score


# Hears of each refused image: model, gate, the image as it came, what was read of it, and the request's id.
OnRefused = Callable[[Model, Gate, bytes | Pixels, Reading, str], None]


# Bytes of a file that takes about as long to decode as to compute.
SMALL_FILE = 65_536


class Predictor:
    """Answers requests with the threads that decode, and the queues of the models."""

    def __init__(
        self, decoders: Decoders, max_pixels: int, solitude: Solitude, on_refused: OnRefused | None = None
    ) -> None:
        self._decoders = decoders
        self._solitude = solitude
        self._on_refused = on_refused
        self._max_pixels = max_pixels

    async def predict(
        self,
        model: Model,
        gate: Gate,
        images: Sequence[bytes | Pixels | RequestError],
        *,
        preprocess: bool,
        partial: bool,
        deadline: float,
        request_id: str = "",
    ) -> list[Decision | RequestError]:
        """One decision for each image. A bad image fails the request, or with `partial` only itself."""
        queue = model.queues["perturbed" if preprocess or gate.score in PREPROCESSED_SCORES else "forward"]
        with queue.admit(len(images), deadline) as ticket:
            for place, image in enumerate(images):
                if isinstance(image, RequestError):
                    queue.refuse(ticket, place, image)
                elif isinstance(image, np.ndarray):
                    queue.put(ticket, place, image)
                elif len(images) > 1 or not self._decode_if_idle(model, queue, ticket, image):
                    # A decoded image goes from its thread straight into the queue: the loop is not asked between.
                    self._decoders.submit(self._decode, model, queue, ticket, place, image)
            readings = await ticket.result()
        for index, reading in enumerate(readings):
            if isinstance(reading, RequestError):
                reading.index = index
                if not partial:
                    raise reading
        decisions = [item if isinstance(item, RequestError) else self._decide(model, gate, item) for item in readings]
        if self._on_refused is not None:
            for image, decision in zip(images, decisions, strict=True):
                if isinstance(decision, Decision) and not decision.accepted:
                    assert not isinstance(image, RequestError)  # those have no decision
                    self._on_refused(model, gate, image, decision.reading, request_id)
        return decisions

    def _decode_if_idle(self, model: Model, queue: Batcher[Reading], ticket: Ticket[Reading], image: bytes) -> bool:
        """One small image for a model with nothing to do is decoded by the thread that will compute it."""
        if len(image) > SMALL_FILE:
            return False
        decoding = bound(self._decode, model, queue, ticket, 0, image)
        if not self._solitude.allows(queue.seconds_per_image):
            return queue.prepare_if_idle(decoding)
        started = time.monotonic()
        taken = queue.prepare_if_idle(decoding, here=True)
        self._solitude.took(time.monotonic() - started)
        return taken

    def _decode(
        self, model: Model, queue: Batcher[Reading], ticket: Ticket[Reading], place: int, encoded: bytes
    ) -> None:
        """In a thread, one job for each image, so that a large one holds up nobody else."""
        if ticket.over:
            return
        started = time.perf_counter()
        decoded: Pixels | RequestError = InferenceFailed("the image made the decoder fail")
        try:
            decoded = decode(encoded, model.manifest.input, self._max_pixels)
        except RequestError as error:
            decoded = error
        finally:
            # Also where `decode` raises what it should not: somebody waits for this image.
            model.metrics.decode.observe(time.perf_counter() - started)
            if isinstance(decoded, RequestError):
                queue.refuse(ticket, place, decoded)
            else:
                queue.put(ticket, place, decoded)

    def _decide(self, model: Model, gate: Gate, reading: Reading) -> Decision:
        score = reading.scores[gate.score][0]
        if not math.isfinite(reading.probabilities[reading.class_id] + score):
            # Compared with a threshold, NaN would be a refusal and infinity an answer like any other.
            raise InferenceFailed("the model's outputs for this image are not finite")
        accepted = accept(score, gate.threshold)
        model.metrics.count_image(reading.scores, reading.class_id, accepted)
        custom = model.override.custom
        if custom is not None and custom.score in reading.scores:
            model.metrics.count_custom(accept(reading.scores[custom.score][0], custom.threshold))
        return Decision(reading, accepted)


def read_outputs(manifest: Manifest, outputs: Outputs) -> list[Reading]:
    """A batch's outputs as readings, with every score that this graph allows."""
    probabilities = softmax(outputs["logits"], manifest.temperature)
    # From the logits themselves: probabilities of different logits may round to the same number.
    class_ids = outputs["logits"].argmax(axis=-1).tolist()
    columns: dict[ScoreName, list[tuple[float, float]]] = {}
    perturbed = "confidence_logit_preprocessed" in outputs or "logits_preprocessed" in outputs
    for name, score in manifest.scores.items():
        if perturbed or name not in PREPROCESSED_SCORES:
            values = score.of_images(name, outputs)
            columns[name] = list(zip(values.tolist(), score.shown(values).tolist(), strict=True))
    return [
        Reading(class_id, row, {name: column[i] for name, column in columns.items()})
        for i, (class_id, row) in enumerate(zip(class_ids, probabilities.tolist(), strict=True))
    ]


def gates_of(manifest: Manifest) -> dict[ScoreName, dict[str, Gate]]:
    """Every score and policy of a bundle, ready to be looked up."""
    return {
        name: {
            policy_name: Gate(name, policy_name, policy.threshold, float(score.shown(policy.threshold)))
            for policy_name, policy in score.policies.items()
        }
        for name, score in manifest.scores.items()
    }
