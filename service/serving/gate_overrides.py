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
from weakref import WeakKeyDictionary

from service.errors import UnknownModel
from service.model.expectation import expectation_of
from service.model.gate import Gate
from service.model.manifest import Manifest
from service.serving.gate_changes import GateChange, gate_of, record_of, restored
from service.serving.override_store import MAX_HISTORY, GateChangeRecord, GateSetting, State, StateFile
from service.serving.served_model import GateOverride, Model

log = logging.getLogger("confgate")

Key = tuple[str, int]


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
        gate, ignored = restored(self._settings.get(key), manifest)
        override = GateOverride(gate, ignored)
        self._loaded.setdefault(key, WeakKeyDictionary())[override] = manifest
        if gate is not None:
            # As a record: minus infinity is no JSON.
            told = record_of(manifest, gate).model_dump()
            log.warning("an operator's gate is in force", extra={"model": key[0], "version": key[1], **told})
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
            gate = gate_of(change, manifest, model.active_gate)
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
            override.gate, override.ignored = restored(self._settings.get(key), manifest)
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


def show(model: Model) -> None:
    """Tells Prometheus which gate is in force, and what calibration expects of it."""
    gate = model.active_gate
    model.metrics.show_active(gate, model.override.ignored is not None)
    if gate.policy in (model.pairs if gate.is_pair else model.gates[gate.score]):
        model.metrics.drop_custom()
    else:
        model.metrics.show_custom(gate, expectation_of(model.manifest, gate))


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
