"""`confgate-train fit`: turns what was typed into the options of a training."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from service.cpus import usable_cpus
from training.cli.options import DataRoot
from training.cli.typed import typed

console = Console()


def fit(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or the path of a .toml file.")],
    out: Annotated[Path, typer.Option(help="Folder of the run; the same command resumes it.")],
    seed: Annotated[int, typer.Option(help="Everything random follows from it.", min=0)] = 0,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field: `--set optimiser.epochs=2`.")
    ] = None,
    data_root: DataRoot = Path("data"),
    data: Annotated[
        Path | None, typer.Option(help="Your own images: a folder with one sub-folder for each class.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Side of the network's input in pixels.", min=1)] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="Pretrained weights for the body: `pretrained`, `torchvision:NAME`, `timm:NAME`, a tag such as "
            "IMAGENET1K_V1, or a .pth, .pt or .safetensors file."
        ),
    ] = None,
    train: Annotated[
        Literal["head", "all"] | None,
        typer.Option(
            help="head: keep the pretrained body and fit the head to its features, in minutes; all: fine-tune the "
            "whole network. [default: as the recipe says; for `photos` head on a CPU, all on a GPU]"
        ),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(
            help="Start from these weights, with their head where its classes are as many: a file or a run's "
            "checkpoint.pt."
        ),
    ] = None,
    device: Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Where to train.")] = "auto",
    precision: Annotated[
        Literal["auto", "fp32", "bf16"], typer.Option(help="auto: bf16 on a GPU that has it, else fp32.")
    ] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile the network.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode --data; the result does not depend on it.", min=0)
    ] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Time between checkpoints within an epoch.", min=0)] = 60.0,
) -> None:
    """Train a network; stopped at any moment, the same command resumes it.

    Example: `confgate-train fit compact-cifar10 --out runs/cifar10`

    Your own photos: `confgate-train fit photos --data DIR --out runs/mine`

    Two GPUs: `torchrun --nproc-per-node 2 -m training fit compact-cifar10 --out runs/cifar10`
    """
    from training.graphs.body_features import BodyFeatures
    from training.graphs.rules_missing import note_before_training
    from training.learning.fit import FitOptions
    from training.learning.fit import fit as run_fit

    options = FitOptions(
        recipe=recipe,
        out=out,
        seed=seed,
        changes=tuple(change or ()),
        data_root=data_root,
        folder=data,
        size=size,
        init=init,
        weights=weights,
        train=train,
        device=device,
        precision=precision,
        compiled=compiled,
        workers=usable_cpus() if workers is None else workers,
        checkpoint_seconds=checkpoint_seconds,
        command=typed(context),
    )
    run_fit(options, console, note_before_training, partial(BodyFeatures, console))
