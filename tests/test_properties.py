"""How property tests draw their examples."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties import USUAL, examples


def drawn() -> list[int]:
    seen: list[int] = []

    @given(st.integers())
    def draw(number: int) -> None:
        seen.append(number)

    draw()
    return seen


def test_every_run_draws_the_same_examples() -> None:
    """Unless another profile is asked for, a property sees the same examples each time, as many as it asks for."""
    if settings.get_current_profile_name() != "default":
        pytest.skip("another profile was asked for")
    assert drawn() == drawn()
    assert settings().max_examples == USUAL == examples(USUAL)


def test_fuzzing_draws_more_and_other_examples() -> None:
    """`fuzz` draws ten times as many, at random, and says how to repeat a failure."""
    fuzz = settings.get_profile("fuzz")
    assert (fuzz.max_examples, fuzz.derandomize, fuzz.print_blob) == (10 * USUAL, False, True)
