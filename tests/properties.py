"""How many examples a property test draws: as many as it says, or ten times as many in `make fuzz`."""

from hypothesis import settings

USUAL = 100  # Hypothesis' own number, and that of the profile `default`


def examples(usual: int) -> int:
    """`usual`, scaled by what the profile that is loaded draws."""
    return usual * settings().max_examples // USUAL
