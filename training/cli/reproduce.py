"""`confgate-train reproduce`: one of the paper's tables, from training to figures."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from training.cli.options import DataRoot, Limit
from training.cli.typed import typed

console = Console()


def reproduce(
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="1 to 5, the paper's tables, or `budget`, the sweep over β.")],
    seeds: Annotated[int, typer.Option(help="How many trainings of each network; the paper has 5.", min=1)] = 1,
    scale: Annotated[
        Literal["paper", "compact"], typer.Option(help="The paper's networks (for a GPU), or the compact one.")
    ] = "paper",
    variant: Annotated[
        Literal["text", "code"], typer.Option(help="Train as the paper's text says, or as its authors' code does.")
    ] = "text",
    out: Annotated[
        Path, typer.Option(help="Folder for runs, bundles, scores and tables; the same one goes on.")
    ] = Path("reproduction"),
    data_root: DataRoot = Path("data"),
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field of every recipe: `--set optimiser.epochs=2`.")
    ] = None,
    epsilon: Annotated[
        Literal["per-set", "per-model", "bundle"], typer.Option(help="ε of preprocessed scores: see `evaluate`.")
    ] = "per-set",
    limit: Limit = None,
    device: Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Where to train and to evaluate.")] = "auto",
    precision: Annotated[Literal["auto", "fp32", "bf16"], typer.Option(help="As for `fit`.")] = "auto",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile the networks.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what there is to do, and do nothing.")] = False,
) -> None:
    """Train, export and evaluate every cell of one of the paper's tables, beside the published values.

    Stopped at any moment, the same command goes on; tables with the same --out share their trainings.

    Example: `confgate-train reproduce 5 --seeds 3 --scale compact --out reproduction`

    What it would do: `confgate-train reproduce 1 --seeds 5 --dry-run`
    """
    from training.paper.reproduction.experiments import plan_experiment
    from training.paper.reproduction.reproduce import Reproduction, show_plan
    from training.paper.reproduction.reproduce import reproduce as run_reproduction
    from training.paper.reproduction.steps import Workspace

    experiment = plan_experiment(table, seeds, scale, variant, tuple(change or ()))
    workspace = Workspace(out, data_root, typed(context), device, precision, compiled)
    reproduction = Reproduction(experiment, workspace, seeds, epsilon, limit)
    if dry_run:
        show_plan(reproduction, console)
        return
    for path in run_reproduction(reproduction, console):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)
