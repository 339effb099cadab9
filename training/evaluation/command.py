"""`confgate-train evaluate` on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from training.data_commands import DataRoot

if TYPE_CHECKING:  # imported late, so that --help is quick
    from training.evaluation.evaluation import Settings
    from training.evaluation.outputs import Progress

console = Console()

Ood = Annotated[
    list[str], typer.Option("--ood", help="An out-of-distribution set (see `data list`); may be given several times.")
]
Limit = Annotated[int | None, typer.Option(help="A quick look: at most so many images of each set.", min=20)]
DeviceOption = Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Where ONNX Runtime computes.")]
RunFolder = Annotated[
    Path | None,
    typer.Option("--run", help="The training run of the bundles, where `--set` or `--data` changed its recipe."),
]


def evaluate(
    bundles: Annotated[list[Path], typer.Argument(metavar="BUNDLE...", help="Bundles with a confidence branch.")],
    ood: Ood,
    baseline: Annotated[
        list[Path] | None,
        typer.Option(help="The network trained without the branch; one for each bundle, in the same order."),
    ] = None,
    data_root: DataRoot = Path("data"),
    out: Annotated[Path, typer.Option(help="Folder for tables and kept scores; the same one resumes.")] = Path(
        "evaluation"
    ),
    epsilon: Annotated[
        Literal["per-set", "per-model", "bundle"],
        typer.Option(help="ε of preprocessed scores: chosen for each set (the paper), for all sets, or as served."),
    ] = "per-set",
    preprocessed: Annotated[
        bool, typer.Option(help="Also ODIN and confidence + preprocessing, which take most of the time.")
    ] = True,
    limit: Limit = None,
    device: DeviceOption = "auto",
    run: RunFolder = None,
) -> None:
    """Measure bundles on out-of-distribution sets, in the layout of the paper's tables.

    Example: `confgate-train evaluate models/mine/1 --baseline models/plain/1 --ood all_images --ood uniform`

    Two trainings, with mean ± std: `confgate-train evaluate m/a/1 m/b/1 --baseline m/c/1 --baseline m/d/1 --ood isun`
    """
    from training.evaluation.evaluation import Settings
    from training.evaluation.evaluation import evaluate as run_evaluation
    from training.evaluation.tables import notes_of, tables_of
    from training.evaluation.write import write_evaluation

    runs = {} if run is None else dict.fromkeys((*bundles, *(baseline or [])), run)
    settings = Settings(tuple(ood), data_root, out, epsilon, limit, device, runs, preprocessed)
    with progress_bar(console) as show:
        evaluation = run_evaluation(bundles, baseline or [], settings, show)
    for table in tables_of(evaluation):
        console.print(table.rich())
    for note in notes_of(evaluation):
        console.print(f"- {note}", highlight=False, markup=False, soft_wrap=True)
    for path in write_evaluation(evaluation, out, _command(bundles, baseline or [], settings)):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


def _command(bundles: list[Path], baselines: list[Path], settings: "Settings") -> str:
    words = ["confgate-train evaluate", *map(str, bundles), *(f"--baseline {b}" for b in baselines)]
    words += [f"--ood {name}" for name in settings.ood]
    words.append(f"--epsilon {settings.epsilon}" if settings.preprocessed else "--no-preprocessed")
    if settings.limit is not None:
        words.append(f"--limit {settings.limit}")
    return " ".join(words)


@contextmanager
def progress_bar(on: Console) -> Iterator["Progress"]:
    """One bar for the set of images being scored."""
    with Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=on, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
