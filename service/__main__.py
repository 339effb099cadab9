"""The `confgate` command: serve bundles, ask a running service, look into a bundle.

confgate serve --models models --port 8000
confgate predict cat.png dog.jpg
confgate bundle inspect models/cifar10/4
confgate keys new alice
"""

import inspect
import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.predict import predict_files
from service.errors import ConfgateError
from service.logs import configure_logs
from service.model.bundle import Bundle, load_bundle
from service.model.session import open_session
from service.settings import ENV_PREFIX, Settings, load_settings, unknown_variables
from service.web.app import create_app
from service.web.keys import add_line, new_key
from service.web.server import DrainingServer

app = typer.Typer(help="Image classification that says when it does not know.", no_args_is_help=True)
bundles = typer.Typer(help="Look into a bundle folder (models/NAME/VERSION).", no_args_is_help=True)
app.add_typer(bundles, name="bundle")
keys = typer.Typer(help="Make API keys.", no_args_is_help=True)
app.add_typer(keys, name="keys")

WRONG_USE = 2


def main() -> None:
    """Runs the command line; what goes wrong on purpose is one message and no traceback."""
    try:
        app()
    except ConfgateError as error:
        typer.echo(f"confgate: {error}", err=True)
        raise SystemExit(WRONG_USE) from error


def serve(config: Path | None, **flags: Any) -> None:
    """Serve the bundles of a folder over HTTP until SIGTERM."""
    settings = load_settings(flags, os.environ, config)
    configure_logs(settings.log_level)
    log = logging.getLogger("confgate")
    for variable in unknown_variables():
        log.warning("%s is set, but there is no such setting: it is ignored", variable)
    DrainingServer(create_app(settings), settings).run()


def _serve_signature() -> inspect.Signature:
    """One flag for each setting, so that the two cannot drift apart. `load_settings` checks the values."""
    config = Annotated[
        Path | None,
        typer.Option(help="Settings file (TOML); flags and environment go first.", envvar="CONFGATE_CONFIG"),
    ]
    parameters = [inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=config)]
    for name, field in Settings.model_fields.items():
        text = f"{field.description} ({ENV_PREFIX}{name.upper()}, default {_default(field.default)})"
        flag = "--" + name.replace("_", "-")
        option: Any
        if field.annotation is bool:
            pair = typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False)
            option = Annotated[bool | None, pair]
        else:
            # Everything else is read as text: the one place that knows what is allowed is Settings.
            option = Annotated[str | None, typer.Option(flag, help=text, show_default=False, metavar="VALUE")]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option))
    return inspect.Signature(parameters)


def _default(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


serve.__signature__ = _serve_signature()  # type: ignore[attr-defined]  # how Typer learns the options
app.command()(serve)


@app.command()
def predict(
    files: Annotated[list[Path], typer.Argument(help="Image files.", exists=True, dir_okay=False)],
    url: Annotated[str, typer.Option(help="Where the service listens.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Which model; the service's default unless given.")] = None,
    version: Annotated[int | None, typer.Option(help="Which version; the highest unless given.")] = None,
    policy: Annotated[str | None, typer.Option(help="Which threshold policy.")] = None,
    score: Annotated[str | None, typer.Option(help="Which score is compared with the threshold.")] = None,
    preprocess: Annotated[bool, typer.Option(help="Gate on the input-preprocessed score.")] = False,
    top_k: Annotated[int | None, typer.Option(help="Show only the k largest probabilities (--json).")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="Your key, if the service asks for one.", envvar="CONFGATE_API_KEY", show_envvar=True),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The service's own answer, for programs.")] = False,
) -> None:
    """Ask a running service about image files."""
    query = {"model": model, "version": version, "policy": policy, "score": score, "top_k": top_k}
    if preprocess:
        query["preprocess"] = "true"
    outcome = predict_files(url, files, query, api_key)
    typer.echo(outcome.json if as_json else outcome.table())
    if outcome.failed:
        raise typer.Exit(1)


@keys.command("new")
def make_key(
    name: Annotated[str, typer.Argument(help="Whose key it is: this name is in the log of each request.")],
    admin: Annotated[bool, typer.Option("--admin", help="A key that may also change things.")] = False,
    file: Annotated[
        Path | None, typer.Option(help="Add the key's line to this file (CONFGATE_API_KEYS_FILE).", dir_okay=False)
    ] = None,
) -> None:
    """Make an API key. The key itself is on stdout, this once; the line to store for it is on stderr."""
    key, line = new_key(name, "admin" if admin else "client")
    if file is not None:
        add_line(file, line)
    typer.echo(f"The key of {name}, which is not shown again:", err=True)
    typer.echo(key)
    place = "The line to store for it in CONFGATE_API_KEYS_FILE" if file is None else f"Added to {file}"
    typer.echo(f"{place}:\n{line}\nA service that runs reads it when it starts again.", err=True)


@bundles.command("inspect")
def inspect_bundle(folder: Annotated[Path, typer.Argument(help="models/NAME/VERSION")]) -> None:
    """Verify the files of a bundle and show what is in it."""
    typer.echo(describe(load_bundle(folder)))


@bundles.command("verify")
def verify_bundle(folder: Annotated[Path, typer.Argument(help="models/NAME/VERSION")]) -> None:
    """Load a bundle as the service would: schema, hashes, tensors, warm-up. Exits with 2 if it is refused."""
    bundle = load_bundle(folder)
    for graph in bundle.manifest.graphs:
        open_session(bundle, graph, "cpu")
        typer.echo(f"{graph}: {bundle.graph_path(graph)}: good")
    typer.echo(f"{bundle.manifest.name} version {bundle.manifest.version}: good")


def describe(bundle: Bundle) -> str:
    """A bundle for a person to read."""
    manifest, size, made = bundle.manifest, bundle.manifest.input, bundle.manifest.provenance
    lines = [
        f"{manifest.name} version {manifest.version}, made {manifest.created:%Y-%m-%d %H:%M %Z}",
        f"  from       {made.recipe}, seed {made.seed}, {made.data}, commit {made.git_sha}",
        f"  input      {size.width}×{size.height} RGB, {size.resize}, {size.interpolation}"
        + (f", crop fraction {size.crop_fraction}" if size.crop_fraction < 1 else ""),
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
            settings.append(f"of {' and '.join(score.typicality.components)} among {score.typicality.n:,} images")
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
    for figure in manifest.evaluation:
        under = "".join(f", {part}" for part in (figure.score, figure.policy) if part is not None)
        lines.append(f"  measured   {figure.metric} {figure.value:.4f} on {figure.data} (n = {figure.n:,}{under})")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
