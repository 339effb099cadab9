"""The gate for requests that name none: the bundle's default, or what an operator has set since.

A change is one assignment of a whole `Gate`. A request reads the gate once, when it is admitted, and is decided and
answered with what it read: no answer mixes two thresholds.

A version may be loaded again with another bundle at any time, also while a change is being saved. Each loaded bundle
therefore gets the gate that follows from the operator's setting and its own manifest.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container
from datetime import UTC, datetime
from typing import Self
from weakref import WeakKeyDictionary

from pydantic import Field, model_validator

from service.errors import MalformedRequest, UnknownModel
from service.model.contract import Contract, PolicyName, Text
from service.model.gate import CUSTOM, Gate, expectation_of, gates_of
from service.model.manifest import Manifest
from service.model.scores import ScoreName
from service.serving.override_store import MAX_HISTORY, GateChangeRecord, GateRecord, GateSetting, State, StateFile
from service.serving.served_model import GateOverride, Model

log = logging.getLogger("confgate")

Key = tuple[str, int]


class GateChange(Contract):
    """A policy by its name, or a threshold of your own: on the scale that answers show, or on that of comparison."""

    score: ScoreName | None = Field(None, description="Which score is compared; the bundle's default unless given.")
    policy: PolicyName | None = Field(None, description="One of the policies that /v1/models lists for the score.")
    threshold: float | None = Field(
        None, gt=0, lt=1, description="A threshold of your own, between 0 and 1, as answers show scores."
    )
    threshold_raw: float | None = Field(
        None, description="A threshold of your own on the score's unbounded scale, for what 0…1 cannot tell apart."
    )
    note: Text | None = Field(None, description="Why; it is kept in the history.")

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        given = [name for name in ("policy", "threshold", "threshold_raw") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of policy, threshold and threshold_raw, not {given or 'none'}")
        return self


def record_of(manifest: Manifest, gate: Gate) -> GateRecord:
    return GateRecord(
        score=gate.score,
        policy=gate.policy,
        threshold=gate.threshold_shown,
        threshold_raw=gate.threshold,
        expected_rejection_rate=expectation_of(manifest, gate).rate,
    )


def gate_of(change: GateChange, manifest: Manifest) -> Gate:
    """The gate that a change asks for; MalformedRequest where the model has no such thing."""
    score = change.score or manifest.default.score
    if score not in manifest.scores:
        raise MalformedRequest(f"score {score!r} is unknown; this model has {', '.join(manifest.scores)}")
    gates = gates_of(manifest)[score]
    if change.policy is not None:
        if change.policy not in gates:
            raise MalformedRequest(f"policy {change.policy!r} is unknown; score {score} has {', '.join(gates)}")
        return gates[change.policy]
    if CUSTOM in gates:
        raise MalformedRequest(f"score {score} has a policy of its own that is called {CUSTOM!r}: set that one")
    if change.threshold is not None:
        return Gate(score, CUSTOM, manifest.scores[score].compared(change.threshold), change.threshold)
    assert change.threshold_raw is not None
    return Gate(score, CUSTOM, change.threshold_raw, float(manifest.scores[score].shown(change.threshold_raw)))


class GateOverrides:
    """What operators have set, for every version that is or may be served."""

    def __init__(self, file: StateFile | None) -> None:
        self._file = file
        state = file.read() if file is not None else State()
        self._settings: dict[Key, GateSetting] = {(item.model, item.version): item for item in state.gates}
        self._history: deque[GateChangeRecord] = deque(state.history, MAX_HISTORY)
        # What is loaded of each version: the bundle that is served, and one before it that still has requests.
        self._loaded: dict[Key, WeakKeyDictionary[GateOverride, Manifest]] = {}
        self._changing = asyncio.Lock()

    def setting_of(self, model: Model) -> GateSetting | None:
        """Who set the gate in force, and when; None where it is the bundle's own."""
        manifest = model.manifest
        return self._settings.get((manifest.name, manifest.version)) if model.override.gate is not None else None

    def history(self, model: str | None, version: int | None, limit: int) -> list[GateChangeRecord]:
        """The newest changes first."""
        chosen = (
            change
            for change in reversed(self._history)
            if model in (None, change.model) and version in (None, change.version)
        )
        return [change for change, _ in zip(chosen, range(limit), strict=False)]

    def override_of(self, manifest: Manifest) -> GateOverride:
        """What a version that is being loaded finds set for it; later changes reach it as long as it is in use."""
        key = (manifest.name, manifest.version)
        gate, ignored = _restored(self._settings.get(key), manifest)
        override = GateOverride(gate, ignored)
        self._loaded.setdefault(key, WeakKeyDictionary())[override] = manifest
        if gate is not None:
            log.warning("an operator's gate is in force", extra={"model": key[0], "version": key[1], **gate._asdict()})
        if ignored is not None:
            _report_ignored(key, ignored)
        return override

    def report_unserved(self, served: Container[Key]) -> None:
        """Warns about gates of versions that are not served. They stay in the file: the version may come back."""
        for name, version in self._settings:
            if (name, version) not in served:
                log.warning(
                    "an operator's gate is kept for a version that is not served",
                    extra={"model": name, "version": version},
                )

    async def set(self, find: Callable[[], Model], change: GateChange, by: str) -> Model:
        """Saves a change, then puts it in force: no answer depends on a gate that a restart would forget.

        `find` returns the version as it is served at that moment, or raises UnknownModel; `by` is the name of the
        operator's key. Returns the version as it is served afterwards.
        """
        async with self._changing:
            model = find()
            manifest = model.manifest
            gate = gate_of(change, manifest)
            setting = GateSetting(
                model=manifest.name,
                version=manifest.version,
                gate=record_of(manifest, gate),
                custom=change.policy is None,
                graph_sha256=manifest.graphs["forward"].sha256,
                by=by,
                at=datetime.now(UTC),
                note=change.note,
            )
            key = (manifest.name, manifest.version)
            await self._save({**self._settings, key: setting}, _changed(setting, model.active_gate, manifest))
            return self._put(key, find) or model

    async def reset(self, name: str, version: int, find: Callable[[], Model], by: str) -> None:
        """Back to the bundle's default; also for a version that is no longer served."""
        async with self._changing:
            setting, model = self._settings.get((name, version)), _found(find)
            if setting is None:
                if self._file is not None:
                    await asyncio.to_thread(self._file.settle)
                if model is None:
                    raise UnknownModel(f"version {version} of model {name!r} is not loaded, and no gate is set for it")
                return
            rest = {key: item for key, item in self._settings.items() if key != (name, version)}
            record = GateChangeRecord(
                model=name,
                version=version,
                action="reset",
                by=by,
                at=datetime.now(UTC),
                before=setting.gate,
                after=record_of(model.manifest, model.default_gate) if model is not None else None,
            )
            await self._save(rest, record)
            self._put((name, version), find)

    async def _save(self, settings: dict[Key, GateSetting], record: GateChangeRecord) -> None:
        history = (*self._history, record)[-MAX_HISTORY:]
        if self._file is not None:
            state = State(gates=tuple(settings.values()), history=history)
            await asyncio.to_thread(self._file.write, state)
        self._settings = settings
        self._history.append(record)
        # A warning, so that who, when and what is in the log at every level but `error`.
        log.warning("gate changed", extra=record.model_dump(mode="json"))

    def _put(self, key: Key, find: Callable[[], Model]) -> Model | None:
        """Gives each loaded bundle of a version the gate that is set now; returns the one that is served."""
        for override, manifest in self._loaded.get(key, {}).items():
            override.gate, override.ignored = _restored(self._settings.get(key), manifest)
        model = _found(find)
        if model is not None:
            show(model)
            if model.override.ignored is not None:
                _report_ignored(key, model.override.ignored)
        return model


def _found(find: Callable[[], Model]) -> Model | None:
    try:
        return find()
    except UnknownModel:
        return None


def _report_ignored(key: Key, why: str) -> None:
    log.error("an operator's gate is NOT in force", extra={"model": key[0], "version": key[1], "why": why})


def _restored(setting: GateSetting | None, manifest: Manifest) -> tuple[Gate | None, str | None]:
    """The gate that a setting gives a bundle, or why that bundle cannot have it."""
    if setting is None:
        return None, None
    saved = setting.gate
    score = next((name for name in manifest.scores if name == saved.score), None)
    if score is None:
        return None, f"the bundle has no score {saved.score!r} any more; its own default decides"
    gates = gates_of(manifest)[score]
    if not setting.custom:
        if saved.policy not in gates:
            return None, f"score {score} has no policy {saved.policy!r} any more; the bundle's default decides"
        return gates[saved.policy], None
    if setting.graph_sha256 != manifest.graphs["forward"].sha256:
        return None, "the bundle has other weights than those the threshold was set for; its own default decides"
    if CUSTOM in gates:
        return None, f"the bundle has a policy {CUSTOM!r} of its own now; its own default decides"
    return Gate(score, CUSTOM, saved.threshold_raw, saved.threshold), None


def show(model: Model) -> None:
    """Tells Prometheus which gate is in force, and what calibration expects of it."""
    gate = model.active_gate
    expected = expectation_of(model.manifest, gate)
    model.metrics.show_active(gate.score, gate.policy, model.override.ignored is not None)
    if gate.policy in model.manifest.scores[gate.score].policies:
        model.metrics.drop_custom()
    else:
        model.metrics.show_custom(gate.score, gate.threshold_shown, expected.rate, expected.margin, expected.n)


def _changed(setting: GateSetting, before: Gate, manifest: Manifest) -> GateChangeRecord:
    return GateChangeRecord(
        model=setting.model,
        version=setting.version,
        action="set",
        by=setting.by,
        at=setting.at,
        note=setting.note,
        before=record_of(manifest, before),
        after=setting.gate,
    )
