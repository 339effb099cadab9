"""What an operator would have seen of a run: which alert said what, when, and which stayed silent."""

from demo.processes import Watched
from demo.run import Run, clock, percent
from demo.watching import ENDED, FIRING, LEAST_IMAGES, Event, Share


def timeline(run: Run) -> list[str]:
    """One line for each change of an alert, in order, and one for each of the gate's own alerts that never was one."""
    watched = {one.alert: one for one in run.gate.watched}
    told = [f"{clock(max(0.0, e.at)):>5}  {e.alert} {_state(run, e, watched.get(e.alert))}" for e in run.events]
    seen = {event.alert for event in run.events}
    return told + [
        f"    –  {one.alert} silent: {_at_the_end(run, one)}" for one in run.gate.watched if one.alert not in seen
    ]


def verdict(run: Run) -> str:
    """What that tells an operator, in one sentence."""
    fired = set(run.fired)
    if not fired:
        return "No alert on refusals fired."
    if len(run.gate.watched) == 1:
        return "Refusals left the band; a gate of one score cannot say whether the images are foreign or hard."
    reasons = {one.reason for one in run.gate.watched if one.alert in fired}
    if reasons == {"unfamiliar"}:
        return "Unfamiliar, not unsure: images that the model was not made for. Look at camera, client and product."
    if reasons == {"unsure"}:
        return "Unsure, not unfamiliar: harder cases of what the model knows. Ask a person."
    return "Unfamiliar and unsure: look at the unfamiliar images first; camera, client or product changed."


def _state(run: Run, event: Event, watched: Watched | None) -> str:
    share = None if watched is None else _share_at(run, event.at, watched.reason)
    if watched is None or share is None or event.state == ENDED:
        return event.state
    more = "" if event.state == FIRING else f" ± {share.tolerance * 100:.1f}"
    return f"{event.state}: {percent(share.rate)} {watched.reason}, expected {share.expected * 100:.1f}{more} %"


def _at_the_end(run: Run, watched: Watched) -> str:
    share = _share_at(run, run.ended_at, watched.reason)
    if share is None:
        return "nothing was read"
    if share.images < LEAST_IMAGES:
        return f"it needs {LEAST_IMAGES} images in its window, and there were {share.images:.0f}"
    return (
        f"{percent(share.rate)} {watched.reason} at the end, expected {share.expected * 100:.1f} "
        f"± {share.tolerance * 100:.1f} %"
    )


def _share_at(run: Run, at: float, reason: str) -> Share | None:
    """The newest share that was known at a moment, or the first one after it."""
    known = [reading for reading in run.readings if reason in reading.shares]
    before = [reading for reading in known if reading.at <= at]
    return (before[-1] if before else known[0]).shares[reason] if known else None
