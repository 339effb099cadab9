"""The values the paper published, as data: one CSV file for each table, and source.toml with their source."""

import csv
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
THRESHOLD_METRICS = ("calibrated_on_ood", "calibrated_on_misclassified")
DETECTION_TABLES = ("1", "2", "4", "5")


@dataclass(frozen=True)
class PublishedRow:
    """One method on one out-of-distribution set; `values` by metric, in per cent."""

    network: str
    in_distribution: str
    out_of_distribution: str
    method: str
    values: dict[str, float]


@cache
def published_rows(table: str) -> tuple[PublishedRow, ...]:
    """A table of the paper by its number, in the paper's order."""
    return tuple(
        PublishedRow(
            network=record["network"],
            in_distribution=record["in_distribution"],
            out_of_distribution=record["out_of_distribution"],
            method=record["method"],
            values={key: float(text) for key, text in record.items() if key not in _KEYS},
        )
        for record in _records(f"table-{table}.csv")
    )


@cache
def published_errors() -> dict[tuple[str, str, str], float]:
    """Classification error in per cent by network, in-distribution set and method (Table 1)."""
    return {
        (r["network"], r["in_distribution"], r["method"]): float(r["classification_error"])
        for r in _records("classification-error.csv")
    }


def published_value(network: str, in_distribution: str, ood: str, method: str, metric: str) -> float | None:
    """One value from any of the paper's tables; None if it has none."""
    wanted = (network, in_distribution, ood, method)
    for table in (*DETECTION_TABLES, "3"):
        for row in published_rows(table):
            found = (row.network, row.in_distribution, row.out_of_distribution, row.method)
            if found == wanted and metric in row.values:
                return row.values[metric]
    return None


@cache
def _source() -> dict[str, Any]:
    return tomllib.loads((FOLDER / "source.toml").read_text())


def published_trainings() -> int:
    """How many trainings each published value is the mean of."""
    return int(_source()["runs"])


def citation() -> str:
    """Authors, title, year and identifier of the paper."""
    source = _source()
    return f"{source['authors']}, {source['title']}, {source['year']}, {source['identifier']}"


_KEYS = ("network", "in_distribution", "out_of_distribution", "method")


def _records(file: str) -> list[dict[str, str]]:
    with (FOLDER / file).open(newline="") as opened:
        return list(csv.DictReader(opened))
