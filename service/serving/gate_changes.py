"""A change of a gate: what an operator may ask for, the gate that it gives a bundle, and what is kept of it."""

import math
from typing import Self

from pydantic import Field, model_validator

from service.errors import MalformedRequest
from service.model.contract import Contract, PolicyName, Text
from service.model.expectation import expectation_of
from service.model.gate import CERTAINTY, CUSTOM, FAMILIARITY, Gate, gates_of, pairs_of
from service.model.manifest import Manifest
from service.model.scores import ScoreName
from service.serving.override_store import ExpectedShares, GateRecord, GateSetting
from service.serving.served_model import unknown_policy

WAYS = ("policy", "threshold", "threshold_raw")
HALVES = ("familiarity", "certainty")


class GateChange(Contract):
    """A policy by its name, or thresholds of your own: one on a score, or a pair on familiarity and certainty."""

    score: ScoreName | None = Field(
        None, description="Which score is compared, alone; unless given, pairs decide, or the bundle's default score."
    )
    policy: PolicyName | None = Field(
        None, description="One of the policies that /v1/models lists, for the score if one is given, else for pairs."
    )
    threshold: float | None = Field(
        None, gt=0, lt=1, description="A threshold of your own, between 0 and 1, as answers show scores."
    )
    threshold_raw: float | None = Field(
        None, description="A threshold of your own on the score's unbounded scale, for what 0…1 cannot tell apart."
    )
    familiarity: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="What typicality must exceed, in a pair of your own; 0: no image is unfamiliar. The "
        "half of the pair that is not given stays as it is.",
    )
    certainty: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="What the largest probability must exceed, in a pair of your own; 0: no image is unsure.",
    )
    note: Text | None = Field(None, description="Why; it is kept in the history.")

    @property
    def is_pair(self) -> bool:
        return any(getattr(self, half) is not None for half in HALVES)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = [name for name in WAYS if getattr(self, name) is not None]
        given += ["familiarity and/or certainty"] if self.is_pair else []
        if len(given) != 1:
            raise ValueError(
                "give exactly one of policy, threshold, threshold_raw, and familiarity and/or certainty, "
                f"not {' with '.join(given) or 'none'}"
            )
        if self.is_pair and self.score is not None:
            raise ValueError("familiarity and certainty are thresholds on scores of their own: leave score out")
        return self


def record_of(manifest: Manifest, gate: Gate) -> GateRecord:
    expected = expectation_of(manifest, gate)
    return GateRecord(
        score=gate.score,
        policy=gate.policy,
        threshold=gate.threshold_shown,
        threshold_raw=finite(gate.threshold),
        certainty_threshold=gate.certainty_threshold_shown,
        certainty_threshold_raw=finite(gate.certainty_threshold),
        expected_rejection_rate=expected.rate,
        expected_refusals=ExpectedShares(unfamiliar=expected.unfamiliar, unsure=expected.unsure),
    )


def finite(threshold: float | None) -> float | None:
    """A threshold for JSON, which has no infinity: null where it refuses nothing."""
    return None if threshold == -math.inf else threshold


def gate_of(change: GateChange, manifest: Manifest, in_force: Gate) -> Gate:
    """The gate that a change asks for; MalformedRequest where the model has no such thing."""
    pairs = pairs_of(manifest)
    if change.is_pair:
        return _own_pair(change, manifest, in_force, pairs)
    if change.policy is not None and change.score is None and change.policy in pairs:
        return pairs[change.policy]
    score = change.score or manifest.default.score
    gates = {} if score is None else gates_of(manifest).get(score)
    if gates is None:
        raise MalformedRequest(f"score {score!r} is unknown; this model has {', '.join(manifest.scores)}")
    if change.policy is not None:
        if change.policy not in gates:
            raise MalformedRequest(unknown_policy(change.policy, score, gates, pairs))
        return gates[change.policy]
    if score is None:
        raise MalformedRequest(
            "this model decides by pairs of thresholds: give familiarity and/or certainty, or name the score"
        )
    if CUSTOM in gates:
        raise MalformedRequest(f"score {score} has a policy of its own that is called {CUSTOM!r}: set that one")
    if change.threshold is not None:
        return Gate(score, CUSTOM, manifest.scores[score].compared(change.threshold), change.threshold)
    assert change.threshold_raw is not None
    return Gate(score, CUSTOM, change.threshold_raw, float(manifest.scores[score].shown(change.threshold_raw)))


def _own_pair(change: GateChange, manifest: Manifest, in_force: Gate, pairs: dict[str, Gate]) -> Gate:
    if not pairs:
        raise MalformedRequest(
            "this model has no pairs of thresholds, because its bundle.json has no `pairs` (schema_version 2): give "
            "policy, threshold or threshold_raw"
        )
    if CUSTOM in pairs:
        raise MalformedRequest(f"this model has a pair of its own that is called {CUSTOM!r}: set that policy")
    default = pairs[manifest.default.policy] if manifest.default.score is None else next(iter(pairs.values()))
    gate = (in_force if in_force.is_pair else default)._replace(policy=CUSTOM)
    if change.familiarity is not None:
        raw = _compared(manifest, FAMILIARITY, change.familiarity)
        gate = gate._replace(threshold=raw, threshold_shown=change.familiarity)
    if change.certainty is not None:
        raw = _compared(manifest, CERTAINTY, change.certainty)
        gate = gate._replace(certainty_threshold=raw, certainty_threshold_shown=change.certainty)
    return gate


def _compared(manifest: Manifest, score: ScoreName, shown: float) -> float:
    return manifest.scores[score].compared(shown) if shown else -math.inf


def restored(setting: GateSetting | None, manifest: Manifest) -> tuple[Gate | None, str | None]:
    """The gate that a setting gives a bundle, or why that bundle cannot have it."""
    if setting is None:
        return None, None
    saved = setting.gate
    if saved.is_pair:
        if manifest.pairs is None:
            return None, "the bundle has no pairs of thresholds any more; its own default decides"
        gates, of = pairs_of(manifest), "the bundle"
        score = FAMILIARITY
    else:
        found = next((name for name in manifest.scores if name == saved.score), None)
        if found is None:
            return None, f"the bundle has no score {saved.score!r} any more; its own default decides"
        gates, of = gates_of(manifest)[found], f"score {found}"
        score = found
    if not setting.custom:
        if saved.policy not in gates:
            kind = "pair" if saved.is_pair else "policy"
            return None, f"{of} has no {kind} {saved.policy!r} any more; the bundle's default decides"
        return gates[saved.policy], None
    if setting.graph_sha256 != manifest.graphs["forward"].sha256:
        return None, "the bundle has other weights than those the threshold was set for; its own default decides"
    if CUSTOM in gates:
        return None, f"the bundle has a policy {CUSTOM!r} of its own now; its own default decides"
    raw = _or_none(saved.threshold_raw)
    if not saved.is_pair:
        return Gate(score, CUSTOM, raw, saved.threshold), None
    certainty = _or_none(saved.certainty_threshold_raw)
    return Gate(score, CUSTOM, raw, saved.threshold, certainty, saved.certainty_threshold), None


def _or_none(raw: float | None) -> float:
    """The inverse of `finite`."""
    return -math.inf if raw is None else raw
