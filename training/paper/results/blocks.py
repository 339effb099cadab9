"""Each generated part of the results page, as Markdown."""

from dataclasses import replace

from training.evaluation.evaluate import Spread
from training.evaluation.measure import METHODS, PAPER_PAIRS
from training.evaluation.ood_sets import ALL, STAND_INS, MeasuredSet, title_of
from training.evaluation.tables import (
    HOW_EPSILON,
    LOWER_IS_BETTER,
    METRIC_TITLES,
    TITLE_OF_METHOD,
    WHAT_AUGRC_IS,
    TextTable,
    metrics_of,
    pair_cell,
    per_cent,
    side_by_side,
    threshold_table,
)
from training.metrics.detection import METRICS
from training.metrics.mixed_traffic import MIXED_AUGRC
from training.paper.published import (
    THRESHOLD_METRICS,
    citation,
    published_errors,
    published_rows,
    published_trainings,
    published_value,
)
from training.paper.reproduction.budget import budget_records, budget_table
from training.paper.reproduction.experiments import COMPACT_BESIDE
from training.paper.results.gather import Result

NOT_YET = "Not measured yet."
_PAPERS = f"VGG13, paper (n = {published_trainings()})"
# The methods of the tables of separation, in the order of comparison.
SHOWN = (
    *("baseline", "odin", "confidence", "confidence_preprocessed", "branch_energy", "baseline_energy"),
    *("branch_typicality", "branch_max_softmax", "branch_neighbours", "branch_certainty", "branch_pair"),
)


def blocks_of(results: list[Result]) -> dict[str, str]:
    """By the name in the page's markers."""
    shipped = [result for result in results if result.shipped]
    trained = [result for result in results if not result.shipped]
    own = [result for result in trained if not result.of_sweep]
    return {
        "trainings": _joined([_trainings(own), _made_with(results)] if own else []),
        "served": _joined([part for result in shipped for part in _separation(result)]),
        "sets": _joined([_sets(own)] if own else []),
        "separation": _joined([part for result in own for part in _separation(result)]),
        "paper": _joined([part for result in own for part in _beside_paper(result)]),
        "thresholds": _joined([part for result in own for part in _thresholds(result)]),
        "budget": _joined(_budgets(trained)),
    }


def _joined(parts: list[str]) -> str:
    return "\n".join(parts) if parts else NOT_YET


def _trainings(results: list[Result]) -> str:
    rows = []
    for result in results:
        group = result.group
        branches = [network for network in group.networks if network.role == "branch"]
        published = [published_errors().get((COMPACT_BESIDE, group.inside, method)) for method in PAPER_PAIRS[0]]
        rows.append(
            (
                f"`{result.name}`",
                title_of(group.inside),
                f"{len(branches)} (seed {', '.join(str(network.seed) for network in branches)})",
                f"{group.n_test:,}",
                per_cent(group.classification_error("baseline"), 2),
                per_cent(group.classification_error("branch"), 2),
                " / ".join("–" if value is None else f"{value:.2f}" for value in published),
            )
        )
    headings = (
        *("recipe", "data", "trainings n", "test images", "error without branch, %", "error with branch, %"),
        "the paper's VGG13, %",
    )
    return TextTable("Classification error", headings, tuple(rows)).markdown()


def _made_with(results: list[Result]) -> str:
    """A figure carries the command that made it."""
    lines = ["Made with, file by file:", ""]
    lines += [f"- `docs/results/{file}`: `{command}`" for r in results for file, command in r.commands.items()]
    return "\n".join(lines)


def _sets(results: list[Result]) -> str:
    found = dict.fromkeys(one for result in results for one in result.evaluation.outside)
    rows = tuple(
        (
            one.title,
            f"{one.n_test:,}",
            f"{one.n_calibration:,}",
            ", ".join(one.made_of) if len(one.made_of) > 1 else "",
            ", ".join(one.stand_ins) or "",
        )
        for one in found
    )
    headings = ("set", "test images", "held out for ε and thresholds", "made of", "stand-ins")
    return TextTable("OOD images", headings, rows).markdown()


def _where(result: Result) -> str:
    return f"`{result.shipped}`" if result.shipped else f"{title_of(result.group.inside)}, {result.group.network}"


def _all_first(result: Result) -> tuple[MeasuredSet, ...]:
    return tuple(sorted(result.evaluation.outside, key=lambda one: one.name != ALL))


def _separation(result: Result) -> list[str]:
    methods = tuple(sorted((m for m in METHODS if m.key in SHOWN), key=lambda method: SHOWN.index(method.key)))
    present = tuple(method for method in methods if method in result.group.methods)
    how = HOW_EPSILON.get(result.evaluation.epsilon or "", "no preprocessed score was measured")
    where = f"{_where(result)}, n = {_n(result)}"
    tables = (
        replace(
            side_by_side(where, result.group, _all_first(result), metric, present),
            title=f"{where}: {METRIC_TITLES[metric]}",
        )
        for metric in metrics_of(result.group)
    )
    said = [f"{where}: {how}.\n"] + ([f"{WHAT_AUGRC_IS}\n"] if result.group.has(MIXED_AUGRC) else [])
    return [*(table.markdown() for table in tables), *said]


def _n(result: Result) -> int:
    return sum(network.role == "branch" for network in result.group.networks)


def _beside_paper(result: Result) -> list[str]:
    """Two rows for each set: ours, and the paper's for the network that ours is compared with."""
    group = result.group
    measured = {one.name for one in result.evaluation.outside}
    parts = []
    for pair in PAPER_PAIRS:
        rows: list[tuple[str, ...]] = []
        for published in _published_sets(group.inside, pair):
            used = next((name for name in (published, STAND_INS.get(published)) if name in measured), None)
            if used is None:
                continue
            ours = {metric: [group.spread(method, used, metric) for method in pair] for metric in METRICS}
            theirs = {m: [_published(group.inside, published, method, m) for method in pair] for m in METRICS}
            rows.append((title_of(used), f"{group.network}, here (n = {_n(result)})", *_pairs(ours)))
            rows.append((title_of(published), _PAPERS, *_pairs(theirs)))
        if rows:
            title = f"{_where(result)}, beside the paper's VGG13: {' / '.join(TITLE_OF_METHOD[key] for key in pair)}"
            headings = ("set", "whose", *(METRIC_TITLES[metric] for metric in METRICS))
            parts.append(TextTable(title, headings, tuple(rows)).markdown())
    return [*parts, f"Source of the paper's rows: {citation()}.\n"] if parts else []


def _published_sets(in_distribution: str, pair: tuple[str, str]) -> list[str]:
    """The sets for which the paper has both methods for this network, in the order of its tables."""
    rows = (row for table in ("4", "5", "2") for row in published_rows(table))
    own = (
        row
        for row in rows
        if (row.network, row.in_distribution, row.method) == (COMPACT_BESIDE, in_distribution, pair[0])
    )
    return list(dict.fromkeys(row.out_of_distribution for row in own))


def _published(in_distribution: str, ood: str, method: str, metric: str) -> Spread | None:
    value = published_value(COMPACT_BESIDE, in_distribution, ood, method, metric)
    return None if value is None else Spread(value / 100, None, published_trainings())


def _pairs(values: dict[str, list[Spread | None]]) -> list[str]:
    return [pair_cell(left, right, metric in LOWER_IS_BETTER) for metric, (left, right) in values.items()]


def _thresholds(result: Result) -> list[str]:
    parts = [threshold_table(_where(result), result.group, _all_first(result)).markdown()]
    for method in PAPER_PAIRS[0]:
        rows = [row for one in result.evaluation.outside for row in result.group.rows(method, one.name)]
        known = [row.thresholds for row in rows if row.thresholds.on_misclassified is not None]
        above = sum(t.on_misclassified > t.on_ood for t in known if t.on_misclassified is not None)
        if known:
            parts.append(
                f"δ misclassified > δ OOD for {TITLE_OF_METHOD[method]}: {above} of {len(known)} (a case for each set "
                f"and training).\n"
            )
    return parts + _papers_thresholds(result)


def _papers_thresholds(result: Result) -> list[str]:
    """All Images beside the paper's Table 3, which has CIFAR-10 only."""
    in_distribution = result.group.inside
    rows = []
    for method in PAPER_PAIRS[0]:
        theirs = [_published(in_distribution, ALL, method, metric) for metric in THRESHOLD_METRICS]
        thresholds = [row.thresholds for row in result.group.rows(method, ALL)]
        if not thresholds or None in theirs:
            continue
        by_mistakes = [t.on_misclassified_error for t in thresholds if t.on_misclassified_error is not None]
        ours = [Spread.of(t.on_ood_error for t in thresholds), Spread.of(by_mistakes) if by_mistakes else None]
        whose = f"{result.group.network}, here (n = {_n(result)})"
        rows.append((TITLE_OF_METHOD[method], whose, *map(per_cent, ours)))
        rows.append((TITLE_OF_METHOD[method], _PAPERS, *map(per_cent, theirs)))
    headings = ("score", "whose", "calibrated on OOD", "calibrated on misclassified")
    title = f"{_where(result)}: detection error on All Images, beside the paper's Table 3"
    return [TextTable(title, headings, tuple(rows)).markdown()] if rows else []


def _budgets(results: list[Result]) -> list[str]:
    """A table for each recipe that was trained with more than one β."""
    parts = []
    for name in dict.fromkeys(result.name for result in results):
        found = {
            result.budget: result.group
            for result in results
            if result.name == name and result.budget is not None and result.group.rows("confidence", ALL)
        }
        if len(found) > 1:
            table = budget_table(budget_records(dict(sorted(found.items())), ALL))
            n = ", ".join(f"{len(group.rows('confidence', ALL))} of β = {budget:g}" for budget, group in found.items())
            parts += [replace(table, title=f"`{name}`: {table.title}").markdown(), f"Trainings: {n}.\n"]
    return parts
