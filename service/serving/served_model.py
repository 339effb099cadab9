"""One served version of a bundle: its queues, its gates, and the leases of the requests that use it."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from service.errors import MalformedRequest
from service.model.bundle import Bundle
from service.model.gate import CUSTOM, Gate, Reading
from service.model.manifest import GraphName, Manifest
from service.model.scores import ScoreName
from service.model.session import ActiveDevice, Device, Session
from service.serving.batcher import Batcher
from service.serving.metrics import ModelMetrics
from service.serving.on_demand import is_open
from service.serving.parallelism import Parallelism


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
        """The operator's own threshold, or pair of them, if that is in force."""
        gate = self.gate
        return gate if gate is not None and gate.policy == CUSTOM else None


@dataclass(frozen=True, slots=True)
class Model:
    """One served version of a bundle."""

    bundle: Bundle
    sessions: dict[GraphName, Session]
    queues: Mapping[GraphName, Batcher[Reading]]
    gates: Mapping[ScoreName, Mapping[str, Gate]]
    pairs: Mapping[str, Gate]
    metrics: ModelMetrics
    requested_device: Device
    device: ActiveDevice
    parallelism: Parallelism
    override: GateOverride = field(default_factory=GateOverride)
    leases: Leases = field(default_factory=Leases)

    @property
    def manifest(self) -> Manifest:
        return self.bundle.manifest

    @property
    def open_graphs(self) -> list[GraphName]:
        """The graphs that take their memory now."""
        return [graph for graph, session in self.sessions.items() if is_open(session)]

    @property
    def default_gate(self) -> Gate:
        """The gate that the bundle ships with."""
        default = self.manifest.default
        return self.pairs[default.policy] if default.score is None else self.gates[default.score][default.policy]

    @property
    def active_gate(self) -> Gate:
        """The gate for requests that name neither score nor policy."""
        return self.override.gate or self.default_gate

    def choose_gate(self, score: str | None, policy: str | None, preprocess: bool) -> Gate:
        """The gate a request asks for; what it leaves open is the operator's choice, or the bundle's default.

        A score that is named decides alone. A policy without a score is a pair first.
        """
        active = self.active_gate
        preprocessed = self._preprocessed_score() if preprocess else None
        if score is None and policy is not None:
            pair = active if active.is_pair and active.policy == policy else self.pairs.get(policy)
            if pair is not None and (preprocessed is None or policy not in self.gates[preprocessed]):
                return pair
        score = score or preprocessed
        if score is None:
            if policy is None:
                return active
            score = self.manifest.default.score if active.is_pair else active.score
        if not active.is_pair and score == active.score and policy in (None, active.policy):
            return active
        return self._single(score, policy)

    def _single(self, score: str | None, policy: str | None) -> Gate:
        """The gate on one score alone; None: requests that name no score are decided by pairs."""
        # A request may name any string.
        policies: Mapping[str, Gate] | None = {} if score is None else self.gates.get(score)  # type: ignore[call-overload]
        if policies is None:
            raise MalformedRequest(f"score {score!r} is unknown; this model has {', '.join(self.gates)}")
        if policy is None:
            # The policy in use may not exist for this score; nor may the bundle's default.
            usual = (self.active_gate.policy, self.manifest.default.policy, "misclassified")
            return next((policies[name] for name in usual if name in policies), None) or next(iter(policies.values()))
        gate = policies.get(policy)
        if gate is None:
            raise MalformedRequest(unknown_policy(policy, score, policies, self.pairs))
        return gate

    def close(self) -> None:
        """Stops the queues after the batches that are running, and closes the sessions."""
        for queue in self.queues.values():
            queue.close()
        self.sessions.clear()

    def _preprocessed_score(self) -> ScoreName:
        score = self.manifest.preprocessed_score
        if score is None:
            raise MalformedRequest("preprocess=true needs a perturbed graph, and this model has none")
        return score


def unknown_policy(policy: str, score: str | None, of_score: Iterable[str], pairs: Iterable[str]) -> str:
    """What to tell whoever names a policy that is not there."""
    names = ", ".join(pairs)
    both = f"pairs of thresholds have {names}; a policy of a single score needs score=" if names else ""
    single = f"score {score} has {', '.join(of_score)}" if score is not None else ""
    return f"policy {policy!r} is unknown; {'; '.join(part for part in (single, both) if part)}"
