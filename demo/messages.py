"""The messages before and after a run, and its summary as JSON."""

import json
from pathlib import Path

from rich.console import Console

from demo.answers import Tally, tally
from demo.faster_rules import Timing
from demo.images import KNOWN, ImageSet
from demo.operator_view import timeline, verdict
from demo.processes import Gate
from demo.run import Run, clock, percent


def print_start(
    console: Console,
    gate: Gate,
    known: ImageSet,
    foreign: ImageSet,
    speed: float,
    timing: Timing,
    url: str,
    prometheus_url: str | None,
) -> None:
    """The model, the gate, the images, and who judges the alerts at which speed."""
    _say(console, f"model       {gate.model} version {gate.version}, served at {url}")
    _say(
        console,
        f"gate        policy {gate.policy} on {gate.compared}; calibration expects it to refuse "
        f"{' and '.join(f'{percent(one.expected)} as {one.reason}' for one in gate.watched)} "
        f"(n = {gate.calibration_images:,})",
    )
    _say(console, f"images      {known.name}: {known.where}")
    _say(console, f"OOD images  {foreign.name}: {foreign.where}")
    if known.name == KNOWN and len(known) < 1000:
        _say(
            console,
            f"            The {len(known)} {known.name} images are sent again and again: accuracy is measured on them, "
            f"not on the whole test set.",
        )
        if figures := on_all_test_images(gate):
            _say(console, f"            {figures}")
    if prometheus_url is not None:
        _say(console, f"alerts      docker/prometheus/rules in a real Prometheus, {prometheus_url}/alerts")
    else:
        _say(
            console,
            f"alerts      There is no `prometheus` on the PATH (Debian: apt install prometheus). The demonstration "
            f"computes the condition of {' and '.join(gate.alerts)} itself, from the answers; it judges no other "
            "alert.",
        )
    _say(
        console,
        f"time        runs {speed:g} times faster for the alert rules: a window of {timing.window * speed / 60:g} "
        f"minutes is {timing.window:g} s here, `for` {timing.hold * speed / 60:g} minutes is {timing.hold:g} s",
    )
    _say(console, "")


def on_all_test_images(gate: Gate) -> str | None:
    """The bundle's figures on the whole test set, if it has them."""
    plain, accepted = gate.figure("accuracy"), gate.figure("accepted_accuracy", gate.policy)
    if plain is None or accepted is None:
        return None
    return (
        f"On all {plain['n']:,} the bundle has: {percent(plain['value'], 2)} with no gate, "
        f"{percent(accepted['value'], 2)} of the {accepted['n']:,} accepted."
    )


def print_result(console: Console, run: Run, out: Path) -> None:
    """Accuracy, refused OOD images, what an operator would have seen, and where the files are."""
    whole, last = tally(run.answers), tally(a for a in run.answers if a.at > run.schedule.ramp[1])
    _say(console, "")
    _print_accuracy(console, "whole run", whole)
    if last.images:
        _print_accuracy(console, f"after {clock(run.schedule.ramp[1])}, {percent(last.foreign_share, 0)} OOD", last)
    reasons = ", ".join(f"{count:,} as {reason}" for reason, count in _foreign_refused(run, whole).items())
    refused = f"{percent(whole.foreign_refused_share)} ({reasons}; n = {whole.foreign:,})"
    _say(console, f"{run.foreign.name} refused: {refused}")
    began = clock(run.schedule.ramp[0])
    _say(console, f"what an operator would have seen (judged by {run.watched_by}; OOD images from {began} on):")
    for line in timeline(run):
        _say(console, f"  {line}")
    _say(console, f"  {verdict(run)}")
    if reuse := run.reuse():
        _say(console, f"note: {reuse}; the figures are of these images.")
    if run.failures:
        failures = ", ".join(f"{count} × {why}" for why, count in run.failures.items())
        _say(console, f"note: requests without an answer, left out of all figures: {failures}")
    _say(console, f"picture: {out / 'demo.png'}; every answer: {out / 'answers.jsonl'}")


def write_summary(run: Run, path: Path) -> None:
    path.write_text(json.dumps(run.summary(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _print_accuracy(console: Console, when: str, seen: Tally) -> None:
    _say(
        console,
        f"accuracy, {when}: {percent(seen.accuracy_of_accepted, 2)} of what the gate accepted "
        f"({seen.accepted_right:,} of {seen.accepted:,}), {percent(seen.accuracy_without_gate, 2)} with no gate "
        f"({seen.right:,} of {seen.images:,})",
    )


def _foreign_refused(run: Run, seen: Tally) -> dict[str, int]:
    counts = {"unfamiliar": seen.unfamiliar_foreign, "unsure": seen.unsure_foreign}
    return {one.reason: counts[one.reason] for one in run.gate.watched}


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
