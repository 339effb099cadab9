"""Which models are served. Readers see one immutable table; a change builds a new table and swaps it in."""

from collections.abc import Mapping
from types import MappingProxyType

from service.errors import NotReady, UnknownModel
from service.serving.served_model import Model

Table = Mapping[str, Mapping[int, Model]]


class Registry:
    """The served models, by name and version; the highest version of a model is its default."""

    def __init__(self) -> None:
        self.default_model: str | None = None  # as the setting or the models folder names it
        self._table: Table = MappingProxyType({})

    @property
    def table(self) -> Table:
        return self._table

    @property
    def default_name(self) -> str | None:
        """The model for requests that name none: the one that is set, or the first by name."""
        return self.default_model or next(iter(self._table), None)

    def get(self, name: str | None, version: int | None) -> Model:
        """The model a request asks for."""
        table = self._table
        name = name or self.default_name
        if name is None:
            raise NotReady("no model is loaded")
        versions = table.get(name)
        if versions is None:
            raise UnknownModel(f"model {name[:80]!r} is not loaded; served are {', '.join(table) or 'none'}")
        if version is None:
            return versions[max(versions)]
        if version not in versions:
            have = ", ".join(map(str, versions))
            raise UnknownModel(f"version {version} of model {name!r} is not loaded; served are {have}")
        return versions[version]

    def swap(self, name: str, versions: Mapping[int, Model]) -> list[Model]:
        """From now on these are a model's versions; with none it is no longer served. Returns those that are out."""
        before = self._table.get(name, {})
        table = {**self._table, name: MappingProxyType(dict(sorted(versions.items())))}
        self._table = MappingProxyType({key: table[key] for key in sorted(table) if table[key]})
        return [model for model in before.values() if versions.get(model.manifest.version) is not model]

    def close(self) -> None:
        """Takes everything out of the table and stops its queues."""
        table, self._table = self._table, MappingProxyType({})
        for versions in table.values():
            for model in versions.values():
                model.close()
