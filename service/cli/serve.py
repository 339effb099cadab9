"""`confgate serve`: serve the bundles of a folder over HTTP.

confgate serve --models models --port 8000
"""

import inspect
import logging
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from service.logs import configure_logs, flush_logs
from service.serving.lifecycle import Lifecycle
from service.settings import ENV_PREFIX, Settings, load_settings, unknown_variables


def serve(config: Path | None, **flags: Any) -> None:
    """Serve the bundles of a folder over HTTP until SIGTERM."""
    # Only here: the other commands start without the framework and without ONNX Runtime.
    from service.web.app import create_app
    from service.web.server import DrainingServer
    from service.web.watchdog import Watchdog

    settings = load_settings(flags, os.environ, config)
    configure_logs(settings.log_level)
    log = logging.getLogger("confgate")
    for variable in unknown_variables():
        log.warning("%s is set, but there is no such setting: it is ignored", variable)
    app = create_app(settings)
    lifecycle: Lifecycle = app.state.lifecycle
    DrainingServer(app, settings, Watchdog(lifecycle).end_by).run()
    # Everything is closed. Python would still free each object, and no watchdog can run meanwhile.
    flush_logs()
    os._exit(int(lifecycle.cut_off))


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
