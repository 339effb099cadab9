"""Options, and one output, that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

if TYPE_CHECKING:  # keeps --help fast
    from service.model.bundle import Bundle

DataRoot = Annotated[Path, typer.Option("--data-root", help="Folder of the NAME.npz files.")]
OOD = typer.Option(
    "--ood",
    help="Out-of-distribution images: the name of a set (see `data list`), or a folder of at least 20 images; may be "
    "given several times.",
)
Ood = Annotated[list[str], OOD]
Limit = Annotated[int | None, typer.Option(help="A quick look: at most so many images of each set.", min=20)]
DeviceOption = Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Where ONNX Runtime computes.")]
RunFolder = Annotated[
    Path | None,
    typer.Option("--run", help="The training run of the bundles: it tells β, and the recipe where a bundle does not."),
]

MovedData = Annotated[
    Path | None, typer.Option("--data", help="Where the folder of images of the training is now, if it was moved.")
]

OwnCalibration = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        help="The images that thresholds were set on, in FOLDER/LABEL/, where the bundle's record does not lead to "
        "them: of an imported model, or after `calibrate --data`.",
    ),
]
OwnTest = Annotated[
    Path | None,
    typer.Option(
        "--test",
        help="Images of the model's own kind to measure on, in FOLDER/LABEL/, in place of those on record; without "
        "labels only OOD figures are measured.",
    ),
]

CalibrationOod = Annotated[
    list[str] | None,
    typer.Option(
        help="Out-of-distribution images: the name of a set (see `data list`), or a folder of at least 20 images; may "
        "be given several times. Half of it, at most 1,000 images, set the policy ood_holdout and ε; the others are "
        "for evaluation."
    ),
]
Tprs = Annotated[
    list[int] | None, typer.Option("--tpr", help="Make policy tprNN, which keeps NN % of images. [default: 95]")
]
Risk = Annotated[
    float | None,
    typer.Option(
        help="Policy risk: the largest share of wrong answers among accepted ones. [default: 0.02, where there are "
        "images enough for it]"
    ),
]
Alpha = Annotated[float, typer.Option(help="How often policy risk may break its promise.")]
EpsilonByOption = Annotated[
    Literal["auto", "ood", "misclassified"],
    typer.Option("--epsilon-by", help="Choose ε on OOD sets or on own mistakes; auto: on OOD sets where given."),
]

Out = Annotated[Path, typer.Option(help="The bundle to write: models/NAME/VERSION.")]


def show_bundle(bundle: "Bundle", console: Console, warning: str | None = None) -> None:
    """Prints the first screen of the card, a warning that must not be overlooked, where the bundle is, what is next."""
    from training.bundles.figure_text import ood_sets_of, own_test_of
    from training.bundles.first_screen import first_screen
    from training.bundles.recorded_images import is_imported
    from training.data.catalogue import CATALOGUE

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    say("\n".join(first_screen(bundle.manifest)))
    if warning is not None:
        say(f"WARNING: {warning}", "bold red")
    say(f"wrote {bundle.folder}; the whole card is {bundle.folder / 'CARD.md'}")
    say(f"next: confgate serve --models {bundle.folder.parent.parent}")
    own = own_test_of(bundle.manifest)
    measured = [] if own is None else ood_sets_of(bundle.manifest, own.removesuffix(" test"))
    # A folder's name is not its place, so a set that is found by name is shown.
    ood = next((name for name in measured if name in CATALOGUE), "uniform")
    test = "" if own is not None or not is_imported(bundle.manifest) else " --test FOLDER"
    say(f"next: confgate-train report {bundle.folder}{test} --ood {ood} --out report   # what it does, in pictures")
