"""The first screen of a card: the default gate alone, short whatever was measured."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.model.bundle import Default, Figure, load_bundle
from tests.conftest import make_bundle
from tests.pair_bundles import make_pair_bundle
from training.bundles.card import write_card
from training.bundles.first_screen import LINES, first_screen

TEST = "colours test"


def figures(sets, policy="balanced", score=None):
    """As `export` measures them, with a different share for each set."""
    of = {"policy": policy, "score": score}
    found = [
        Figure(metric="accuracy", data=TEST, value=0.9, n=1_000),
        Figure(metric="accepted_accuracy", data=TEST, value=0.96, n=910, **of),
    ]
    for place, data in enumerate((TEST, *sets)):
        whole = 0.5 + place / 100
        shares = {"": whole, "_unfamiliar": whole - 0.02, "_unsure": 0.02} if score is None else {"": whole}
        found += [
            Figure(metric=f"rejection_rate{reason}", data=data, value=value, n=1_000 + place, **of)
            for reason, value in shares.items()
        ]
    return tuple(found)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return load_bundle(make_pair_bundle(tmp_path_factory.mktemp("pair") / "models").folder).manifest


def measured(manifest, number):
    sets = [f"set_{place}" for place in range(number)]
    return manifest.model_copy(update={"evaluation": figures(sets)}), sets


def card_of(manifest):
    return write_card(manifest, "colours", "A tiny network.", "by hand", "")


@given(number=st.integers(0, 40))
def test_it_is_at_most_fifteen_lines_whatever_was_measured(pair, number):
    """With any number of OOD sets; the card begins with it, and a heading follows."""
    manifest, _ = measured(pair, number)
    lines = first_screen(manifest)
    assert len(lines) <= LINES == 15
    assert max(map(len, lines)) <= 110  # wider ones would be more lines on a terminal
    assert card_of(manifest).startswith("\n".join(lines) + "\n\n## ")


@pytest.mark.parametrize("number", [1, 6, 7, 9, 13])
def test_it_says_what_is_refused_and_why_and_what_is_caught_of_each_set(pair, number):
    """Both thresholds as answers show them, the accuracy of the accepted, and each set with its n and its shares."""
    manifest, sets = measured(pair, number)
    text = "\n".join(first_screen(manifest))
    gate = manifest.pairs.policies["balanced"]
    for name, score, threshold in (
        ("unfamiliar", "typicality", gate.familiarity),
        ("unsure", "certainty", gate.certainty),
    ):
        assert re.search(
            rf"as \*{name}\* \([a-z ]+ at most {float(manifest.scores[score].shown(threshold)):.4f}\)", text
        )
    assert "Accuracy of accepted colours test images: **96.00%** (n = 910); without a gate 90.00% (n = 1,000)." in text
    for place, data in enumerate((TEST, *sets)):
        whole, unfamiliar = f"{50 + place:.2f}%", f"{48 + place:.2f}%"
        name = f"OOD: {data}" if place else data
        row = rf"\| {name} \| {1_000 + place:,} \| {whole} (\| {unfamiliar} \| 2.00%|\({unfamiliar}\)) \|"
        assert re.search(row, text), data


def test_sets_that_do_not_fit_are_in_the_card(pair):
    """Of twenty sets the first twelve are on the screen; the card has both reasons for all of them."""
    manifest, sets = measured(pair, 20)
    text = "\n".join(first_screen(manifest))
    assert [data for data in sets if f"| OOD: {data} |" in text] == sets[:12]
    assert "| 8 more sets | | below |" in text
    assert "| set_19 | 1,020 | 70.00% | 68.00% | 2.00% |" in card_of(manifest)


def test_a_gate_without_test_images_says_what_is_expected(pair):
    """Nothing was measured, or only under other policies: what calibration expects stands there instead."""
    others = pair.model_copy(update={"evaluation": figures(["night"], "foreign_only")})
    for manifest in (pair.model_copy(update={"evaluation": ()}), others):
        text = "\n".join(first_screen(manifest))
        assert "calibration images: 15.00% (7.50% to 17.00%) refused, 5.00% (2.50% to 7.00%) unfamiliar" in text
        assert "|" not in text


def test_a_gate_that_refuses_nothing_says_so(pair):
    """The default after a failed calibration is accept_all, and the card warns as the terminal does."""
    manifest = pair.model_copy(update={"default": Default(policy="accept_all"), "evaluation": ()})
    assert "**WARNING: no image is refused.** The default gate, policy `accept_all`" in first_screen(manifest)[2]


def test_a_gate_on_one_score_has_no_reasons(tmp_path):
    """Such as that of a bundle of schema_version 1: the score, its threshold, and what is refused."""
    manifest = load_bundle(make_bundle(tmp_path / "models").folder).manifest
    manifest = manifest.model_copy(update={"evaluation": figures(["night"], "misclassified", "confidence")})
    text = "\n".join(first_screen(manifest))
    assert "refuses images whose score `confidence` is at most 0.5000." in text
    assert "| OOD: night | 1,001 | 51.00% |\n" in text + "\n"
    assert "unfamiliar" not in text
    assert card_of(manifest).startswith(text)
