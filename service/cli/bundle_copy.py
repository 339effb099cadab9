"""`confgate bundle copy`: a version under another name or number, published as any other, whole or not at all."""

import re
from pathlib import Path

from service.errors import ConfgateError
from service.model.bundle import Bundle, load_bundle, target_problem, write_bundle
from service.model.command_line import command_line
from service.model.manifest import MANIFEST, Manifest

COPIED = re.compile(r"; copied from \S+ version \d+$")


class CopyError(ConfgateError):
    """A bundle cannot be copied to where it was asked for."""


def copy_bundle(source: Path, target: Path) -> Bundle:
    """The same graphs, thresholds and figures as models/NAME/VERSION; name, version, card and provenance say so."""
    bundle = load_bundle(source)
    problem = target_problem(target)
    if problem is not None:
        raise CopyError(f"TARGET is {target}, {problem}")
    old = bundle.manifest
    command = command_line(["confgate", "bundle", "copy", source, target])
    origin = f"{old.name} version {old.version}"
    made = old.provenance.model_copy(
        update={
            "data": f"{COPIED.sub('', old.provenance.data)}; copied from {origin}",
            "commands": (*old.provenance.commands, command),
        }
    )
    update = {"name": target.parent.name, "version": int(target.name), "provenance": made}
    manifest = old.model_copy(update=update)
    files: dict[str, Path | bytes] = {**bundle.files}
    for document in sorted(source.iterdir()):
        if document.is_file() and document.name not in {*files, MANIFEST} and not document.name.startswith("."):
            files[document.name] = document.read_bytes()
    card = files.get("CARD.md")
    if isinstance(card, bytes):
        files["CARD.md"] = _card(card.decode(errors="replace"), old, manifest, command).encode()
    return write_bundle(target.parent.parent, manifest, files)


def _card(card: str, old: Manifest, new: Manifest, command: str) -> str:
    """The same card under the new title; at its end is where the figures come from."""
    before, after = (f"# {manifest.name} version {manifest.version}\n" for manifest in (old, new))
    card = after + card.removeprefix(before) if card.startswith(before) else card
    return (
        f"{card.rstrip()}\n\nCopied from {old.name} version {old.version}, which has the same graphs, thresholds and "
        f"figures:\n\n```sh\n{command}\n```\n"
    )
