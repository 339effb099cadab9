"""The model owner's dashboard: is the data still like that of calibration, and how does a new version compare?"""

from grafana_foundation_sdk.builders import dashboard
from panels import POLICY, SCORE, VERSION, Panel, dashed, frame, limits, lines, quantile, query

SHARE = f"confgate:confidence_share:1h{{{SCORE},source="


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
        limits(
            lines(
                "Population stability index of the score",
                "How far the scores of the last hour are from those of calibration: below 0.1 alike, above 0.25 "
                "another population. ConfgateConfidenceDrift fires above 0.25 where z is above 4 as well, from 200 "
                "images on.",
                "short",
                query(f"confgate:confidence_psi:1h{{{VERSION}}}", "{{score}}, version {{version}}"),
            ),
            [(None, "transparent"), (0.1, "orange"), (0.25, "red")],
        ),
        limits(
            lines(
                "Is that more than chance?",
                "z of the stability index, from its χ² distribution for two samples of one population. Little "
                "traffic makes the index large by chance but leaves z small.",
                "short",
                query(f"confgate:confidence_psi:z{{{VERSION}}}", "{{score}}, version {{version}}"),
            ),
            [(None, "transparent"), (4, "red")],
        ),
        lines(
            "Which scores became more frequent",
            "Share of the last hour's images in each range of the score, less the share of the calibration "
            "images. A range is named by its upper edge.",
            "percentunit",
            query(f'{SHARE}"live"}} - ignoring(source) {SHARE}"reference"}}', "≤ {{bin}}, version {{version}}"),
        ),
        limits(
            lines(
                "Refused share: z against the expected rate",
                "Every policy. Beyond 4 either way it is more than chance; the operator's dashboard shows whether "
                "it is enough to matter.",
                "short",
                query(
                    f"confgate:policy_rejection_rate:z{{{VERSION}}}",
                    "{{score}} / {{policy}}, version {{version}}",
                ),
            ),
            [(None, "transparent"), (4, "red")],
        ),
    ]


def _versions() -> list[Panel]:
    return [
        lines(
            "Traffic by version",
            "Images per second. A blue mark is a version that became ready.",
            "cps",
            query(
                f"sum by (version) (rate(confgate_predictions_total{{{VERSION}}}[$__rate_interval]))",
                "version {{version}}",
            ),
            stacked=True,
        ),
        dashed(
            lines(
                "Refused share by version",
                "The chosen policy over 10 minutes, and what each version's own calibration expects.",
                "percentunit",
                query(f"confgate:policy_rejection_rate:10m{{{POLICY}}}", "version {{version}}"),
                query(f"confgate:policy_expected_rejection_rate{{{POLICY}}}", "expected of version {{version}}"),
            ),
            "expected.*",
        ),
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
                "version {{version}}",
            ),
        ),
    ]
