"""The model owner's dashboard: is the data still like that of calibration, and how does a new version compare?"""

from grafana_foundation_sdk.builders import dashboard, timeseries
from panels import (
    CERTAINTY_SCORES,
    SCORE,
    VERSION,
    Panel,
    dashed,
    expected_share,
    frame,
    in_force,
    limits,
    lines,
    quantile,
    query,
    refused_share,
)

SHARE = f"confgate:confidence_share:1h{{{SCORE},source="
VERSION_NAME = "version {{version}}"
# Familiarity and certainty are two questions, and drift apart: which scores answer which.
FAMILIARITY = f'{VERSION},score!~"{CERTAINTY_SCORES}"'
CERTAINTY = f'{VERSION},score=~"{CERTAINTY_SCORES}"'


def owner_board() -> dashboard.Dashboard:
    board = frame(
        "confgate: model owner",
        "confgate-owner",
        "Does the model still meet the data it was calibrated on, and how does a new version compare?",
        several_versions=True,
    ).time("now-2d", "now")
    for title, panels in (("Drift from the calibration images", _drift()), ("Versions", _versions())):
        board.with_row(dashboard.Row(title))
        for panel in panels:
            board.with_panel(panel)
    return board


def _drift() -> list[Panel]:
    return [
        _stability("Drift of familiarity", FAMILIARITY, "Another source of images, if this moves: see `typicality`."),
        _stability("Drift of certainty", CERTAINTY, "Harder or easier images, if only this moves: see `certainty`."),
        _chance("Is the drift of familiarity more than chance?", FAMILIARITY),
        _chance("Is the drift of certainty more than chance?", CERTAINTY),
        lines(
            "Which values of the chosen score became more frequent",
            "Share of the last hour's images in each range of the score, less the share of the calibration "
            "images. A range is named by its upper edge.",
            "percentunit",
            query(f'{SHARE}"live"}} - ignoring(source) {SHARE}"reference"}}', "≤ {{bin}}, version {{version}}"),
        ),
        limits(
            lines(
                "Refused share: z against the expected share",
                "Every policy and reason. Beyond 4 either way it is more than chance; the operator's dashboard shows "
                "whether it is enough to matter.",
                "short",
                query(
                    f"confgate:policy_refusal_rate:z{{{VERSION}}}",
                    "{{score}} / {{policy}}: {{reason}}, version {{version}}",
                ),
            ),
            [(None, "transparent"), (4, "red")],
        ),
    ]


def _stability(title: str, scores: str, hint: str) -> timeseries.Panel:
    panel = lines(
        title,
        "Population stability index: how far the scores of the last hour are from those of calibration. Below 0.1 "
        f"alike, above 0.25 another population. {hint} ConfgateConfidenceDrift fires for a score in use above 0.25 "
        "where z is above 4 as well, from 200 images on.",
        "short",
        query(f"confgate:confidence_psi:1h{{{scores}}}", "{{score}}, version {{version}}"),
    )
    return limits(panel, [(None, "transparent"), (0.1, "orange"), (0.25, "red")])


def _chance(title: str, scores: str) -> timeseries.Panel:
    panel = lines(
        title,
        "z of the stability index, from its χ² distribution for two samples of one population. Little traffic makes "
        "the index large by chance but leaves z small.",
        "short",
        query(f"confgate:confidence_psi:z{{{scores}}}", "{{score}}, version {{version}}"),
    )
    return limits(panel, [(None, "transparent"), (4, "red")])


def _versions() -> list[Panel]:
    return [
        lines(
            "Traffic by version",
            "Images per second. A blue mark is a version that became ready.",
            "cps",
            query(
                f"sum by (version) (rate(confgate_predictions_total{{{VERSION}}}[$__rate_interval]))",
                VERSION_NAME,
            ),
            stacked=True,
        ),
        lines(
            "Accepted by version",
            "Share of the last 10 minutes' images that the gate in force of each version accepts.",
            "percentunit",
            query(in_force(f"1 - confgate:policy_rejection_rate:10m{{{VERSION}}}"), VERSION_NAME),
        ),
        _by_version("unfamiliar"),
        _by_version("unsure"),
        lines(
            "Score by version",
            "Median and lowest tenth of the chosen score.",
            "percentunit",
            query(quantile(0.5, "confgate_confidence", SCORE, "le, version"), "median, version {{version}}"),
            query(quantile(0.1, "confgate_confidence", SCORE, "le, version"), "lowest tenth, version {{version}}"),
        ),
        lines(
            "Inference time by version",
            "95 % of the batches take less.",
            "s",
            query(
                quantile(0.95, "confgate_inference_duration_seconds", VERSION, "le, version"),
                VERSION_NAME,
            ),
        ),
    ]


def _by_version(reason: str) -> timeseries.Panel:
    panel = lines(
        f"Refused as {reason}, by version",
        "The gate in force of each version over 10 minutes, and what its own calibration expects.",
        "percentunit",
        query(refused_share(reason), VERSION_NAME),
        query(expected_share(reason), f"expected of {VERSION_NAME}"),
    )
    return dashed(panel, "expected.*")
