"""How property tests draw: the same examples each time; in `make fuzz` new ones, ten times as many."""

from hypothesis import core, settings

USUAL = 100  # Hypothesis' own number, and that of the profile `default`


def examples(usual: int) -> int:
    """`usual`, scaled by what the profile that is loaded draws."""
    return usual * settings().max_examples // USUAL


def seed_of_this_run() -> int | None:
    """For schemathesis, which draws by a seed of its own; that of `--hypothesis-seed`, if examples are to differ."""
    return 0 if settings().derandomize else core.global_force_seed
