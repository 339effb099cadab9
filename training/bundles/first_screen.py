"""The first screen of a card: the default gate alone, in at most LINES lines. Commands print it when a bundle is made.

What the gate refuses and why, how right the accepted answers are, and what it catches of each OOD set.
"""

from collections.abc import Iterator

from service.model.bundle import Figure, Manifest
from training.bundles.figure_text import counted, expected, figure_of, ood_sets_of, own_test_of, share, threshold

LINES = 15
ROWS = 7  # of the table: LINES less the title, what the gate does (3), two blank lines and the table's heading (2)


def first_screen(manifest: Manifest) -> list[str]:
    """Lines of Markdown."""
    own = own_test_of(manifest)
    lines = [f"# {manifest.name} version {manifest.version}", "", *_gate(manifest)]
    refused = None if own is None else _refused(manifest, own)
    if own is None or refused is None:
        return [*lines, _expectation(manifest)]
    default = manifest.default
    kept = figure_of(manifest, "accepted_accuracy", own, default.score, default.policy)
    accepted = "none is accepted" if kept is None else f"**{kept.value:.2%}** (n = {kept.n:,})"
    ungated = counted(figure_of(manifest, "accuracy", own))
    lines.append(f"Accuracy of accepted {own} images: {accepted}; without a gate {ungated}.")
    sets = [data for data in ood_sets_of(manifest, own.removesuffix(" test")) if _refused(manifest, data) is not None]
    table = _a_row_each(manifest, own, sets) if len(sets) < ROWS else _two_in_a_row(manifest, own, sets)
    return [*lines, "", *table]


def is_pair(manifest: Manifest) -> bool:
    """Whether the default gate asks both questions."""
    return manifest.default.score is None and manifest.pairs is not None


def by_reason(manifest: Manifest, data: str) -> str:
    """Cells of a table: the share that the default gate refuses, and its part for each reason."""
    reasons = ("rejection_rate", *(("rejection_rate_unfamiliar", "rejection_rate_unsure") if is_pair(manifest) else ()))
    default = manifest.default
    return " | ".join(share(figure_of(manifest, metric, data, default.score, default.policy)) for metric in reasons)


def _gate(manifest: Manifest) -> Iterator[str]:
    """A line for each reason: none is much wider than a terminal."""
    name = f"The default gate, policy `{manifest.default.policy}`, refuses"
    if manifest.refuses_nothing and manifest.pairs is not None:
        how = manifest.pairs.policies[manifest.default.policy].how
        yield f"**WARNING: no image is refused.** The default gate, policy `{manifest.default.policy}`, {how}"
        return
    first, *second = _what_it_refuses(manifest)
    yield f"{name} {first}" + ("" if second else ".")
    yield from (f"or {one}." for one in second)


def _what_it_refuses(manifest: Manifest) -> list[str]:
    default = manifest.default
    if default.score is not None:
        value = manifest.scores[default.score].policies[default.policy].threshold
        return [f"images whose score `{default.score}` is at most {threshold(manifest, default.score, value)}"]
    assert manifest.pairs is not None
    pair = manifest.pairs.policies[default.policy]
    reasons = []
    if pair.familiarity is not None:
        familiarity = threshold(manifest, "typicality", pair.familiarity)
        reasons.append(f"images as *unfamiliar* (familiarity at most {familiarity})")
    if pair.certainty is not None:
        certainty = threshold(manifest, "certainty", pair.certainty)
        reasons.append(f"{'' if reasons else 'images '}as *unsure* (largest probability at most {certainty})")
    return reasons


def _expectation(manifest: Manifest) -> str:
    """In place of figures on test images."""
    default = manifest.default
    if default.score is None:
        assert manifest.pairs is not None
        pair = manifest.pairs.policies[default.policy]
        return (
            f"Expected on images like the calibration images: {expected(pair.expected.total)} refused, "
            f"{expected(pair.expected.unfamiliar)} unfamiliar and {expected(pair.expected.unsure)} unsure "
            f"(n = {pair.n:,}). Not measured on test images."
        )
    policy = manifest.scores[default.score].policies[default.policy]
    return (
        f"Expected on images like the calibration images: {policy.expected_rejection_rate:.2%} refused "
        f"(n = {policy.n:,}). Not measured on test images."
    )


def _refused(manifest: Manifest, data: str) -> Figure | None:
    return figure_of(manifest, "rejection_rate", data, manifest.default.score, manifest.default.policy)


def _a_row_each(manifest: Manifest, own: str, sets: list[str]) -> Iterator[str]:
    reasons = " as unfamiliar | as unsure |" if is_pair(manifest) else ""
    yield f"| images | n | refused |{reasons}"
    yield "|---|---|---|" + ("---|---|" if reasons else "")
    for data, name in ((own, own), *((one, f"OOD: {one}") for one in sets)):
        refused = _refused(manifest, data)
        yield f"| {name} | {0 if refused is None else refused.n:,} | {by_reason(manifest, data)} |"


def _two_in_a_row(manifest: Manifest, own: str, sets: list[str]) -> Iterator[str]:
    """For many sets; those that do not fit are in the card below."""
    cells = [_cell(manifest, own), *(f"OOD: {_cell(manifest, data)}" for data in sets)]
    if len(cells) > 2 * ROWS:
        left_out = len(cells) - 2 * ROWS + 1
        cells = [*cells[: 2 * ROWS - 1], f"{left_out} more sets | | below"]
    if len(cells) % 2:
        cells.append(" | | ")
    heading = f"images | n | refused{' (unfamiliar)' if is_pair(manifest) else ''}"
    yield f"| {heading} | {heading} |"
    yield "|" + "---|" * 6
    for left, right in zip(cells[::2], cells[1::2], strict=True):
        yield f"| {left} | {right} |"


def _cell(manifest: Manifest, data: str) -> str:
    refused = _refused(manifest, data)
    policy = manifest.default.policy
    reason = figure_of(manifest, "rejection_rate_unfamiliar", data, None, policy) if is_pair(manifest) else None
    why = f" ({share(reason)})" if reason is not None else ""
    return f"{data} | {0 if refused is None else refused.n:,} | {share(refused)}{why}"
