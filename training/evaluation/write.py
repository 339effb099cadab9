"""An evaluation on disk: evaluation.md to read, two CSV files to compute with, evaluation.json with everything."""

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from training.evaluation.evaluate import Evaluation, Spread
from training.evaluation.tables import notes_of, tables_of
from training.metrics.detection import METRICS
from training.metrics.mixed_traffic import MIXED_AUGRC

FORMAT = 1  # of evaluation.json; another number means that `combine` cannot read it


def write_evaluation(evaluation: Evaluation, out: Path, command: str) -> list[Path]:
    """Writes the four files into `out`, each atomically, and returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    contents = {
        "evaluation.md": markdown_of(evaluation, command),
        "evaluation.csv": csv_text(_metric_records(evaluation)),
        "thresholds.csv": csv_text(_threshold_records(evaluation)),
        "evaluation.json": json_text(json_of(evaluation, command)),
    }
    for name, text in contents.items():
        write_text(out / name, text)
    return [out / name for name in contents]


def write_text(path: Path, text: str) -> None:
    """Replaces a file atomically."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def markdown_of(evaluation: Evaluation, command: str) -> str:
    """Notes and tables."""
    notes = "\n".join(f"- {note}" for note in notes_of(evaluation))
    tables = "\n".join(table.markdown() for table in tables_of(evaluation))
    return f"# Evaluation\n\n`{command}`\n\n{notes}\n\n{tables}"


def json_of(evaluation: Evaluation, command: str) -> dict[str, Any]:
    """Everything, network by network; shares are fractions and thresholds on the unbounded scale."""
    return {
        "format": FORMAT,
        "command": command,
        "epsilon": evaluation.epsilon,
        "limit": evaluation.limit,
        "notes": notes_of(evaluation),
        "about_images": evaluation.about_images,
        "outside": [asdict(one) | {"stand_ins": one.stand_ins} for one in evaluation.outside],
        "groups": [asdict(group) for group in evaluation.groups],
    }


def json_text(content: dict[str, Any]) -> str:
    """One line for each set and method: half the size, and readable diffs."""
    lines: dict[str, str] = {}

    def in_a_line(row: dict[str, Any]) -> str:
        placeholder = f"row {len(lines)} of evaluation.json"
        lines[json.dumps(placeholder)] = json.dumps(row, ensure_ascii=False)
        return placeholder

    groups = [
        group | {"networks": [n | {"rows": [in_a_line(row) for row in n["rows"]]} for n in group["networks"]]}
        for group in content["groups"]
    ]
    text = json.dumps(content | {"groups": groups}, indent=1, ensure_ascii=False)
    for placeholder, line in lines.items():
        text = text.replace(placeholder, line, 1)
    return text + "\n"


def _metric_records(evaluation: Evaluation) -> list[dict[str, Any]]:
    records = []
    for group in evaluation.groups:
        for one in evaluation.outside:
            for method in group.methods:
                rows = group.rows(method.key, one.name)
                record: dict[str, Any] = _key(group.inside, group.network, one.name, method.key)
                record |= {"n_trainings": len(rows), "n_inside": rows[0].n_inside, "n_outside": rows[0].n_outside}
                record["epsilon"] = " ".join(f"{row.epsilon:g}" for row in rows if row.epsilon is not None)
                error = group.classification_error(method.role)
                record |= _both("classification_error", error)
                for metric in (*METRICS, "fpr_at_95_tpr_out_positive"):
                    spread = group.spread(method.key, one.name, metric)
                    record |= _both(metric, spread)
                    if evaluation.has_intervals:
                        record |= _ends(metric, spread)
                record |= _both(MIXED_AUGRC, group.spread(method.key, one.name, MIXED_AUGRC))
                record["limit"] = evaluation.limit or ""
                records.append(record)
    return records


def _threshold_records(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One row for each network: a mean of thresholds would hide which of them is higher."""
    records = []
    for group in evaluation.groups:
        for network in group.networks:
            for row in network.rows:
                t = row.thresholds
                above = None if t.on_misclassified is None else t.on_misclassified > t.on_ood
                record: dict[str, Any] = _key(group.inside, group.network, row.outside, row.method)
                record |= {"bundle": network.bundle, **asdict(t), "misclassified_above_ood": above}
                records.append({key: "" if value is None else value for key, value in record.items()})
    return records


def _key(in_distribution: str, network: str, ood: str, method: str) -> dict[str, Any]:
    return {"in_distribution": in_distribution, "network": network, "out_of_distribution": ood, "method": method}


def _both(name: str, spread: Spread | None) -> dict[str, Any]:
    """Mean and standard deviation as fractions; empty if there is none."""
    mean, std = (None, None) if spread is None else (spread.mean, spread.std)
    return {name: "" if mean is None else round(mean, 6), f"{name}_std": "" if std is None else round(std, 6)}


def _ends(name: str, spread: Spread | None) -> dict[str, Any]:
    """The interval of one training; empty if there are several."""
    low, high = ("", "") if spread is None or spread.interval is None else (round(end, 6) for end in spread.interval)
    return {f"{name}_low": low, f"{name}_high": high}


def csv_text(records: list[dict[str, Any]]) -> str:
    """Records as a CSV file with a heading; all have the same keys."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
