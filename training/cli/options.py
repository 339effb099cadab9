"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DataRoot = Annotated[Path, typer.Option("--data-root", help="Folder of the NAME.npz files.")]
