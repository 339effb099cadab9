"""`confgate-train xor`: the paper's figure of what a confidence branch learns."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

console = Console()


def xor(
    out: Annotated[Path, typer.Option(help="Folder for the figure, xor.png.")],
    seed: Annotated[int, typer.Option(help="Points and weights follow from it.", min=0)] = 0,
) -> None:
    """Draw what a confidence branch learns on XOR: the paper's figure, for six budgets and four levels of noise.

    Example: `confgate-train xor --out runs/xor`
    """
    from rich.progress import Progress

    from training.paper.xor import BUDGETS, EPOCHS, NOISES, Setting, train_stack
    from training.paper.xor_figure import draw_grid

    settings = [Setting(budget, noise, seed) for budget in BUDGETS for noise in NOISES]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"training {len(settings)} networks", total=EPOCHS)
        stack = train_stack(settings, on_epoch=lambda: progress.advance(task))
    out.mkdir(parents=True, exist_ok=True)
    draw_grid(stack, out / "xor.png")
    console.print(f"wrote {out / 'xor.png'}")
