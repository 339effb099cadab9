"""evaluation.json of the tiny bundles, and copies of it that pass for other trainings."""

import hashlib
import json
from pathlib import Path
from typing import Any


def written(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def seeds_of(source: Path, folder: Path, seeds: int, name: str = "compact-cifar10") -> list[Path]:
    """NAME-seedN.json: as if that many networks had been trained, each a little better than the one before."""
    files = []
    for seed in range(seeds):
        content = json.loads(source.read_text(encoding="utf-8"))
        for group in content["groups"]:
            for network in group["networks"]:
                network["seed"] = seed
                if seed:  # other weights have another hash
                    before = network["graphs"]
                    network["graphs"] = hashlib.sha256(f"{seed}{before}".encode()).hexdigest()[: len(before)]
                for row in network["rows"]:
                    row["metrics"]["auroc"] += seed / 1000
        files.append(written(folder / f"{name}-seed{seed}.json", content))
    return files
