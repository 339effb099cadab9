"""The memory that budgets are derived from."""

from pathlib import Path

from service.memory import usable_memory
from service.serving.budgets import bodies_megabytes, decoding_megabytes


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    """A cgroup's limit is taken (v2 and v1), `max` and a missing file mean the machine's memory."""
    machine = usable_memory(tmp_path)
    assert machine > 100_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert usable_memory(tmp_path) == machine
    (tmp_path / "memory.max").write_text("50000000\n")
    assert usable_memory(tmp_path) == 50_000_000
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("70000000\n")
    assert usable_memory(tmp_path) == 70_000_000


def test_budgets_have_bounds() -> None:
    """A setting is taken as it is; without one the budgets lie between their least and their most."""
    assert (bodies_megabytes(7), decoding_megabytes(9)) == (7, 9)
    assert 32 <= bodies_megabytes(0) <= 512
    assert 64 <= decoding_megabytes(0) <= 1024
