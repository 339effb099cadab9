"""`confgate keys`: make API keys.

confgate keys new alice --file keys.txt
"""

from pathlib import Path
from typing import Annotated

import typer

from service.web.keys import add_line, new_key

app = typer.Typer(help="Make API keys.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make API keys."""  # with a callback, Typer keeps `new` as a command of its own


@app.command("new")
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
