"""Imports refused images that the service kept (`confgate serve --capture-dir`), and lays them out for labelling.

ROOT/captured/  to_review/LABEL/   the label that the model predicted; not reviewed yet
                reviewed/LABEL/    the label that a person gave: `confgate-train fit … --data ROOT/captured/reviewed`
                outside/           images of none of the classes
                labels.csv         the same as a table: fill in `label` and import again, and the files are moved
ROOT/captured.npz           all of them without labels, for use as an OOD set
ROOT/SET_captured.npz       with --add-to SET: that set, with the reviewed images added to its training part

Another import adds new images and leaves those that a person has sorted in place.
"""

import csv
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import InvalidImage, TooLarge
from service.model.bundle import Input
from service.model.images import decode
from training.data.folder import MAX_PIXELS
from training.data.importers.images import stretched
from training.data.importers.named_sets import save_arrays
from training.data.labelled_folder import folder_name
from training.data.splits import Images, load_labelled, read_arrays
from training.errors import DataError

SIDE = 32
OUTSIDE = "-"  # in the column `label`: of none of the classes
COLUMNS = (
    *("file", "label", "predicted", "probability", "score", "score_value", "threshold", "policy"),
    *("reason", "typicality", "certainty", "certainty_threshold"),
    *("model", "version", "captured", "request_id"),
)
DIGEST = re.compile(r"[0-9a-f]{32}")


class Record(BaseModel):
    """DIGEST.json, as the service writes it."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    schema_version: int = Field(ge=1, le=1)
    captured: str
    request_id: str
    model: str
    version: int
    label: str
    probabilities: dict[str, float]
    score: str
    score_value: float
    policy: str
    threshold: float
    # Records from before there were reasons have none of these.
    reason: str | None = None
    typicality: float | None = None
    certainty: float | None = None
    certainty_threshold: float | None = None


@dataclass(frozen=True)
class Imported:
    """What an import did, for the command to print."""

    folder: Path
    files: tuple[Path, ...]
    new: int
    waiting: int
    reviewed: int
    outside: int
    skipped: tuple[str, ...]


def import_captured(source: Path, root: Path, size: int | None = None, add_to: str | None = None) -> Imported:
    """Copies new captures to the review folder, moves those that labels.csv labels, and writes the .npz files."""
    records, skipped = _read_captures(source)
    folder = root / "captured"
    known = {path.stem: path for path in folder.rglob("*.png") if DIGEST.fullmatch(path.stem)}
    if not records and not known:
        raise DataError(f"{source} holds no captured images. Expected the folder of `confgate serve --capture-dir`.")
    for part in ("reviewed", "to_review"):
        for name in dict.fromkeys(label for _, record in records.values() for label in record.probabilities):
            (folder / part / folder_name(name)).mkdir(parents=True, exist_ok=True)
    (folder / "outside").mkdir(parents=True, exist_ok=True)
    new = [digest for digest in records if digest not in known]
    for digest in new:
        image, record = records[digest]
        known[digest] = folder / "to_review" / folder_name(record.label) / f"{digest}.png"
        shutil.copyfile(image, known[digest])
    table = folder / "labels.csv"
    rows = _read_table(table)
    _move_labelled(rows, known, folder, table)
    for digest, (_, record) in records.items():
        rows.setdefault(digest, {**_row(digest, record), "label": ""})
    for digest, row in rows.items():
        if digest in known:
            row["label"] = _label_by_place(known[digest], folder)
    _write_table(table, rows)
    files = [_save_unlabelled(root, known, size or SIDE)]
    if add_to is not None:
        files.append(_extend(root, add_to, folder))
    counts = {part: sum(1 for _ in (folder / part).rglob("*.png")) for part in ("to_review", "reviewed", "outside")}
    return Imported(
        folder, tuple(files), len(new), counts["to_review"], counts["reviewed"], counts["outside"], tuple(skipped)
    )


def _read_captures(source: Path) -> tuple[dict[str, tuple[Path, Record]], list[str]]:
    if not source.is_dir():
        raise DataError(f"{source} is not a folder. Expected the folder of `confgate serve --capture-dir`.")
    found: dict[str, tuple[Path, Record]] = {}
    skipped = []
    for file in sorted(path for path in source.rglob("*.json") if DIGEST.fullmatch(path.stem)):
        image = file.with_suffix(".png")
        if not image.is_file():
            continue  # the service is writing or deleting this pair
        try:
            found[file.stem] = image, Record.model_validate_json(file.read_bytes())
            decode(image.read_bytes(), stretched(8, 8), MAX_PIXELS)
        except FileNotFoundError:
            found.pop(file.stem, None)
        except (ValidationError, InvalidImage, TooLarge) as problem:
            found.pop(file.stem, None)
            skipped.append(f"{file.name}: {str(problem).splitlines()[0]}")
    return found, skipped


def _row(digest: str, record: Record) -> dict[str, Any]:
    return {
        "file": f"{digest}.png",
        "predicted": record.label,
        "probability": f"{record.probabilities.get(record.label, 0.0):.4f}",
        "score": record.score,
        "score_value": f"{record.score_value:.6f}",
        "threshold": f"{record.threshold:.6f}",
        "policy": record.policy,
        "reason": record.reason or "",
        "typicality": _number(record.typicality),
        "certainty": _number(record.certainty),
        "certainty_threshold": _number(record.certainty_threshold),
        "model": record.model,
        "version": record.version,
        "captured": record.captured,
        "request_id": record.request_id,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _read_table(table: Path) -> dict[str, dict[str, Any]]:
    if not table.is_file():
        return {}
    try:
        with table.open(encoding="utf-8-sig", newline="") as opened:  # spreadsheets write a byte order mark
            rows = list(csv.DictReader(opened))
    except (UnicodeDecodeError, csv.Error) as problem:
        raise DataError(f"{table} is not a CSV table in UTF-8 ({problem}). Save it as one.") from problem
    if rows and not {"file", "label"} <= set(rows[0]):
        raise DataError(f"{table} has no columns 'file' and 'label' separated by commas. Save it as it was written.")
    return {Path(row["file"]).stem: row for row in rows}


def _move_labelled(rows: dict[str, dict[str, Any]], known: dict[str, Path], folder: Path, table: Path) -> None:
    """Moves images to the labels in the table; an image that was already sorted by hand stays where it is."""
    classes = {path.name for path in (folder / "reviewed").iterdir() if path.is_dir()}
    wrong = []
    for digest, row in rows.items():
        label, place = (row.get("label") or "").strip(), known.get(digest)
        if not label or place is None or _label_by_place(place, folder):
            continue
        if label != OUTSIDE and folder_name(label) not in classes:
            wrong.append(f"{row['file']}: {label!r}")
            continue
        target = folder / "outside" if label == OUTSIDE else folder / "reviewed" / folder_name(label)
        known[digest] = place.rename(target / place.name)
    if wrong:
        raise DataError(
            f"{table} has {len(wrong)} labels that are no class: {'; '.join(wrong[:5])}. Expected one of "
            f"{', '.join(sorted(classes))}, or {OUTSIDE} for none of them. For a new class make the folder "
            f"{folder / 'reviewed'}/NAME first."
        )


def _label_by_place(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder).parts
    if parts[0] == "outside":
        return OUTSIDE
    return parts[1] if parts[0] == "reviewed" and len(parts) > 2 else ""


def _write_table(table: Path, rows: dict[str, dict[str, Any]]) -> None:
    partial = table.with_name(".labels.partial")
    with partial.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, COLUMNS, extrasaction="ignore", restval="")
        writer.writeheader()
        ranked = sorted(rows.values(), key=lambda row: (row.get("predicted") or "", row.get("score_value") or ""))
        writer.writerows(ranked)
    partial.replace(table)


def _save_unlabelled(root: Path, known: dict[str, Path], size: int) -> Path:
    paths = sorted(known.values(), key=lambda path: path.name)
    return save_arrays(root, "captured", x=_stack(paths, stretched(size, size)))


def _extend(root: Path, name: str, folder: Path) -> Path:
    """The set NAME with the reviewed images in its training part; its test part does not change."""
    train, test, labels = load_labelled(name, root)
    if test is None:
        raise DataError(f"data set '{name}' has no test part of its own: the captures would be tested on as well.")
    numbers = {folder_name(label): number for number, label in enumerate(labels)}
    reviewed = sorted((folder / "reviewed").rglob("*.png"))
    unknown = sorted({path.parent.name for path in reviewed} - numbers.keys())
    if unknown:
        raise DataError(f"data set '{name}' has no class {', '.join(unknown)}; it has {', '.join(labels)}.")
    if not reviewed:
        raise DataError(f"nothing is reviewed yet: {folder}/labels.csv has no label, {folder}/reviewed no image.")
    images = read_arrays(name, root)["x_train"]
    target = stretched(images.shape[2], images.shape[1])
    return save_arrays(
        root,
        f"{name}_captured",
        x_train=np.concatenate([images, _stack(reviewed, target)]),
        y_train=np.concatenate([train.labels, [numbers[path.parent.name] for path in reviewed]]),
        x_test=test.images[:],
        y_test=test.labels,
        label_names=np.asarray(labels),
    )


def _stack(paths: list[Path], target: Input) -> Images:
    return np.stack([decode(path.read_bytes(), target, MAX_PIXELS) for path in paths])
