"""The `confgate` command: serve bundles, ask a running service, look into a bundle, make keys."""

import typer

from service.cli import bundle, keys
from service.cli.predict import predict
from service.cli.serve import serve
from service.errors import ConfgateError

WRONG_USE = 2

app = typer.Typer(help="Image classification that says when it does not know.", no_args_is_help=True)
app.command()(serve)
app.command()(predict)
app.add_typer(bundle.app, name="bundle")
app.add_typer(keys.app, name="keys")


def main() -> None:
    """Runs the command line. An error that confgate raises on purpose is one message, without a traceback."""
    try:
        app()
    except ConfgateError as error:
        typer.echo(f"confgate: {error}", err=True)
        raise SystemExit(WRONG_USE) from error
