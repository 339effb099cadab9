"""One served version of a bundle: its queues, its gates, and the leases of the requests that use it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.errors import MalformedRequest
from service.model.bundle import Bundle
from service.model.gate import CUSTOM, Gate, Reading
from service.model.manifest import GraphName, Manifest
from service.model.scores import ScoreName
from service.model.session import ActiveDevice, Device
from service.serving.batcher import Batcher
from service.serving.metrics import ModelMetrics


class Leases:
    """Counts the requests in flight of one version, on the event loop.

    A version that was replaced is closed when the last request that found it has ended.
    """

    __slots__ = ("_free", "_held")

    def __init__(self) -> None:
        self._held = 0
        self._free: asyncio.Event | None = None

    def take(self) -> None:
        self._held += 1

    def give_back(self) -> None:
        self._held -= 1
        if self._free is not None and not self._held:
            self._free.set()

    async def wait_until_free(self) -> None:
        """Only for a version that no further request can find."""
        if self._held:
            self._free = asyncio.Event()
            await self._free.wait()


@dataclass(slots=True, weakref_slot=True, eq=False)
class GateOverride:
    """What an operator has set instead of the bundle's default, for one loaded bundle. `GateOverrides` assigns it."""

    gate: Gate | None = None
    ignored: str | None = None  # why a setting is not in force

    @property
    def custom(self) -> Gate | None:
        """The operator's own threshold, if that is in force."""
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
        """The gate that the bundle ships with."""
        default = self.manifest.default
        return self.gates[default.score][default.policy]

    @property
    def active_gate(self) -> Gate:
        """The gate for requests that name neither score nor policy."""
        return self.override.gate or self.default_gate

    def choose_gate(self, score: str | None, policy: str | None, preprocess: bool) -> Gate:
        """The gate a request asks for; what it leaves open is the operator's choice, or the bundle's default."""
        active = self.active_gate
        preprocessed = self._preprocessed_score() if preprocess else None
        score = score or preprocessed or active.score
        if score == active.score and policy in (None, active.policy):
            return active
        # A request may name any string.
        policies: Mapping[str, Gate] | None = self.gates.get(score)  # type: ignore[call-overload]
        if policies is None:
            raise MalformedRequest(f"score {score!r} is unknown; this model has {', '.join(self.gates)}")
        if policy is None:
            # The policy in use belongs to another score, and may not exist for this one; nor may the bundle's default.
            default = self.manifest.default.policy
            return policies.get(active.policy) or policies.get(default) or next(iter(policies.values()))
        gate = policies.get(policy)
        if gate is None:
            raise MalformedRequest(f"policy {policy!r} is unknown; score {score} has {', '.join(policies)}")
        return gate

    def close(self) -> None:
        """Stops the queues after the batches that are running."""
        for queue in self.queues.values():
            queue.close()

    def _preprocessed_score(self) -> ScoreName:
        score = self.manifest.preprocessed_score
        if score is None:
            raise MalformedRequest("preprocess=true needs a perturbed graph, and this model has none")
        return score
