"""A tiny reproduction of one of the paper's tables, trained once for all tests that need finished bundles."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.training.command_line import confgate_train
from tests.training.paper_data import TINY, write_paper_data

LIMIT = 40


@dataclass(frozen=True)
class Reproduced:
    """`reproduce 5 --scale compact` with one seed, on tiny data."""

    data: Path
    out: Path
    log: str

    def bundle(self, recipe: str) -> Path:
        return self.out / "bundles" / f"{recipe}-seed0" / "1"

    def run(self, recipe: str) -> Path:
        return self.out / "runs" / f"{recipe}-seed0"

    def arguments(self, table: str) -> list[object]:
        return [
            *("reproduce", table, "--scale", "compact", "--seeds", 1, "--data-root", self.data, "--out", self.out),
            *("--limit", LIMIT, "--device", "cpu", *TINY),
        ]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes in one thread: on images this small threads mostly wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    root = tmp_path_factory.mktemp("reproduced")
    made = Reproduced(write_paper_data(root / "data"), root / "out", "")
    done = confgate_train(*made.arguments("5"))
    return Reproduced(made.data, made.out, done.stdout)


@pytest.fixture(scope="session")
def earlier(reproduced: Reproduced, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """evaluation.json of the tiny pair of bundles, with intervals and every score, on three sets."""
    out = tmp_path_factory.mktemp("earlier")
    branch, baseline = "compact-cifar10", "compact-cifar10-baseline"
    confgate_train(
        *("evaluate", reproduced.bundle(branch), "--baseline", reproduced.bundle(baseline), "--intervals"),
        *("--ood", "uniform", "--ood", "all_images", "--ood", "lsun_bedroom_resize", "--epsilon", "bundle"),
        *("--run", reproduced.run(branch), "--limit", LIMIT, "--data-root", reproduced.data, "--device", "cpu"),
        *("--out", out),
    )
    return out / "evaluation.json"
