"""`confgate bundle`: look into a bundle folder (models/NAME/VERSION), or copy it.

confgate bundle inspect models/cifar10/5
confgate bundle verify models/cifar10/5
confgate bundle copy models/cifar10/5 models/pets/1
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue

    from service.model.bundle import Bundle
    from service.model.manifest import Manifest

app = typer.Typer(help="Look into a bundle folder (models/NAME/VERSION), or copy it.", no_args_is_help=True)
Folder = Annotated[Path, typer.Argument(help="models/NAME/VERSION")]


@app.command("inspect")
def inspect_bundle(folder: Folder) -> None:
    """Verify the files of a bundle and show what is in it."""
    from service.model.bundle import load_bundle  # here, so that the other commands start without numpy

    typer.echo(describe(load_bundle(folder)))


@app.command("verify")
def verify_bundle(folder: Folder) -> None:
    """Load a bundle as the service would: schema, hashes, tensors, warm-up. Exits with 2 if it is refused."""
    from service.model.bundle import load_bundle
    from service.model.session import open_session  # here, so that the other commands start without ONNX Runtime

    bundle = load_bundle(folder)
    for graph in bundle.manifest.graphs:
        open_session(bundle, graph, "cpu")
        typer.echo(f"{graph}: {bundle.graph_path(graph)}: good")
    typer.echo(f"{bundle.manifest.name} version {bundle.manifest.version}: good")


@app.command("copy")
def copy(
    source: Annotated[Path, typer.Argument(help="The bundle to copy: models/NAME/VERSION.")],
    target: Annotated[Path, typer.Argument(help="Its new name and version: models/OTHER/VERSION.")],
) -> None:
    """Publish a version under another name or number: verified, whole or not at all, with the same hashes."""
    from service.cli.bundle_copy import copy_bundle

    bundle = copy_bundle(source, target)
    typer.echo(f"wrote {bundle.folder}, with the graphs and thresholds of {source}")
    typer.echo(f"next: confgate serve --models {bundle.folder.parent.parent}")


def describe(bundle: "Bundle") -> str:
    """A bundle for a person to read."""
    manifest, size, made = bundle.manifest, bundle.manifest.input, bundle.manifest.provenance
    lines = [
        f"{manifest.name} version {manifest.version}, made {manifest.created:%Y-%m-%d %H:%M %Z}",
        f"  from       {made.recipe}, seed {made.seed}, {made.data}, commit {made.git_sha}",
        *(f"  made by    {command}" for command in made.commands),
        *_describe_recipe(made.resolved_recipe or {}),
        f"  input      {size.width}×{size.height} RGB, {size.resize}, {size.interpolation}"
        + (f", crop fraction {size.crop_fraction}" if size.crop_fraction < 1 else "")
        + f", decode margin {size.decode_margin if size.decode_margin == 'full' else f'{size.decode_margin:g}'}",
        *([] if manifest.max_batch is None else [f"  batch      at most {manifest.max_batch}"]),
        f"  labels     {len(manifest.labels)}: {', '.join(manifest.labels)}",
        f"  softmax    at temperature {manifest.temperature}",
        *(f"  file       {file.file}, {file.size:,} bytes, sha256 {file.sha256}" for file in manifest.files),
    ]
    for name, score in manifest.scores.items():
        settings = [f"epsilon {score.epsilon}"] if score.epsilon is not None else []
        settings += [f"temperature {score.temperature}"] if score.temperature is not None else []
        if score.display is not None:
            settings.append(f"shown about {score.display.location:g} in units of {score.display.scale:g}")
        if score.typicality is not None:
            weights = score.typicality.weights or {}
            components = [
                f"{part} (weight {weights[part]:g})" if part in weights else part
                for part in score.typicality.components
            ]
            settings.append(f"of {' and '.join(components)} among {score.typicality.n:,} images")
        images = sum(score.reference.counts)
        lines.append(f"  score      {', '.join([name, *settings])}, reference of {images:,} images")
        for policy_name, policy in score.policies.items():
            default = manifest.default.score == name and manifest.default.policy == policy_name
            interval = policy.expected_rejection_interval
            between = "" if interval is None else f" ({interval[0]:.2%} to {interval[1]:.2%})"
            error = "" if policy.detection_error is None else f", detection error {policy.detection_error:.2%}"
            lines.append(
                f"    policy   {policy_name}: above {float(score.shown(policy.threshold)):.6f} "
                f"({policy.threshold:+.4f}), rejects {policy.expected_rejection_rate:.2%}{between}{error}, "
                f"n = {policy.n:,}: {policy.how}{' [default]' if default else ''}"
            )
    lines += _describe_pairs(manifest)
    for figure in manifest.evaluation:
        pair = "pair " if figure.score is None else ""
        under = "".join(f", {part}" for part in (figure.score, figure.policy and pair + figure.policy) if part)
        lines.append(f"  measured   {figure.metric} {figure.value:.4f} on {figure.data} (n = {figure.n:,}{under})")
    return "\n".join(lines)


def _describe_recipe(recipe: "Mapping[str, JsonValue]") -> list[str]:
    """A line for each section, and one for the fields outside of sections."""
    sections = {name: value for name, value in recipe.items() if isinstance(value, dict)}
    alone = {name: value for name, value in recipe.items() if name not in sections}
    return [
        f"  recipe     {section}{', '.join(f'{name}={_value(value)}' for name, value in fields.items())}"
        for section, fields in (("", alone), *((f"{name}: ", fields) for name, fields in sections.items()))
        if fields
    ]


def _value(value: "JsonValue") -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _describe_pairs(manifest: "Manifest") -> list[str]:
    if manifest.pairs is None:
        return []
    from service.model.gate import pairs_of

    lines = [f"  pairs      of typicality and certainty, reference of {manifest.pairs.joint.n:,} images"]
    for name, gate in pairs_of(manifest).items():
        policy = manifest.pairs.policies[name]
        shares = ", ".join(
            f"{share.rate:.2%} ({share.interval[0]:.2%} to {share.interval[1]:.2%}) {reason}"
            for reason, share in (("as unfamiliar", policy.expected.unfamiliar), ("as unsure", policy.expected.unsure))
        )
        default = manifest.default.score is None and manifest.default.policy == name
        lines.append(
            f"    policy   {name}: typicality {_threshold(gate.threshold_shown, policy.familiarity)}, certainty "
            f"{_threshold(gate.certainty_threshold_shown, policy.certainty)}, rejects "
            f"{policy.expected.total.rate:.2%}: {shares}, n = {policy.n:,}: {policy.how}"
            f"{' [default]' if default else ''}"
        )
    return lines


def _threshold(shown: float | None, raw: float | None) -> str:
    return "not compared" if raw is None else f"above {shown:.6f} ({raw:+.4f})"
