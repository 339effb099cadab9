"""The operator's dashboard: does the gate refuse the shares that calibration expects, and is the service healthy?"""

from grafana_foundation_sdk.builders import dashboard, timeseries
from panels import (
    MODEL,
    SCORE,
    VERSION,
    Panel,
    Steps,
    band,
    dashed,
    expected_share,
    frame,
    heat_map,
    in_force,
    limits,
    lines,
    number,
    quantile,
    query,
    refused_share,
    tolerated,
)

# A request for an unknown model is counted with an empty label.
REQUESTS = 'model=~"$model|"'
OFF_BY = (
    f"abs(confgate:policy_refusal_rate:10m{{{VERSION}}} - confgate:policy_expected_refusals) "
    "/ confgate:policy_refusal_rate:tolerance"
)
PLAIN: Steps = [(None, "text")]


def operator_board() -> dashboard.Dashboard:
    board = frame(
        "confgate: operator",
        "confgate-operator",
        "Does the gate refuse as many images as its calibration expects, for each reason, and is the service well?",
        several_versions=False,
    )
    for title, panels in (
        ("What the gate refuses", _refused()),
        ("Now", _now()),
        ("Traffic", _traffic()),
        ("What is refused, and what other policies would refuse", _gate()),
        ("Speed and saturation", _speed()),
    ):
        board.with_row(dashboard.Row(title))
        for panel in panels:
            board.with_panel(panel)
    return board


def _refused() -> list[Panel]:
    return [
        _against_expected(
            "unfamiliar",
            "Unfamiliar images against what calibration expects",
            "The rate of out-of-distribution images: the share that is unlike what the model was made for. More: a "
            "wrong camera, a wrong client or a new product. ConfgateUnfamiliarRateOff",
        ),
        _against_expected(
            "unsure",
            "Unsure images against what calibration expects",
            "The share that is familiar, but whose class the model cannot tell. More: harder cases, which a person "
            "should see. ConfgateUnsureRateOff",
        ),
    ]


def _against_expected(reason: str, title: str, meaning: str) -> timeseries.Panel:
    live, expected, tolerance = refused_share(reason), expected_share(reason), tolerated(reason)
    description = (
        f"{meaning} fires outside the band for 15 minutes (ConfgateRejectionRateOff for a gate of one score, which "
        "refuses for one reason and has 0 here for the other). The gate in force, over 10 minutes; the band is the "
        "larger of 2 points, a quarter of the expected share and 4 standard errors."
    )
    panel = lines(
        title,
        description,
        "percentunit",
        query(live, "live"),
        query(expected, "expected"),
        query(f"{expected} + {tolerance}", "upper"),
        query(f"clamp_min({expected} - {tolerance}, 0)", "lower"),
    )
    return band(dashed(panel, "expected"), lower="lower", upper="upper")


def _now() -> list[Panel]:
    return [
        number(
            "Ready",
            "Replicas that have loaded this version and would answer for it.",
            "short",
            query(f"sum(confgate_model_ready{{{VERSION}}})", "replicas"),
            [(None, "red"), (1, "green")],
        ),
        number(
            "Images",
            "Images classified per second, all versions of the model.",
            "cps",
            query(f"sum(rate(confgate_predictions_total{{{MODEL}}}[$__rate_interval]))", "images"),
            PLAIN,
        ),
        number(
            "Refused",
            "Share of the images of the last 10 minutes that the gate in force refuses, for either reason.",
            "percentunit",
            query(in_force(f"confgate:policy_rejection_rate:10m{{{VERSION}}}"), "refused"),
            PLAIN,
        ),
        number(
            "Off by",
            "How far the unfamiliar or the unsure share is from the expected one, whichever is further, in parts of "
            "what is tolerated. Above 100 % for 15 minutes, an alert fires.",
            "percentunit",
            query(f"max({in_force(f'({OFF_BY})')})", "of the tolerance"),
            [(None, "green"), (0.7, "orange"), (1, "red")],
        ),
        number(
            "Device",
            "What the sessions really run on, as ONNX Runtime reports it.",
            "none",
            query(f"sum by (active) (confgate_device_info{{{VERSION}}})", "{{active}}"),
            PLAIN,
            show_name=True,
        ),
        number(
            "Alerts",
            "Alerts that are firing now, of all models.",
            "short",
            query('count(ALERTS{alertstate="firing"}) or vector(0)', "firing"),
            [(None, "green"), (1, "red")],
        ),
    ]


def _traffic() -> list[Panel]:
    return [
        lines(
            "Requests by outcome",
            "Requests per second. `shed`: the queue was full; `timeout`: the deadline passed; `invalid`: the "
            "client's fault; `error`: ours.",
            "reqps",
            query(f"sum by (outcome) (rate(confgate_requests_total{{{REQUESTS}}}[$__rate_interval]))", "{{outcome}}"),
            stacked=True,
        ),
        lines(
            "Images by decision and reason",
            "Images per second by what was answered, under the policy that each request asked for. Accepted images "
            "have the reason `none`.",
            "cps",
            query(
                f"sum by (decision, reason) (rate(confgate_predictions_total{{{VERSION}}}[$__rate_interval]))",
                "{{decision}}: {{reason}}",
            ),
            stacked=True,
        ),
    ]


def _gate() -> list[Panel]:
    return [
        _every_policy("unfamiliar"),
        _every_policy("unsure"),
        _by_label("unfamiliar", "One label that stands out points at one kind of input; all labels, at their source."),
        _by_label("unsure", "One label that stands out is a class that became hard to tell."),
        heat_map(
            "Score over time",
            "Images by the chosen score. What the model knows gathers at the top; what it does not, below. Of a pair, "
            "typicality is familiarity and certainty is certainty.",
            "none",
            f"sum by (le) (increase(confgate_confidence_bucket{{{SCORE}}}[$__rate_interval]))",
            width=24,
        ),
    ]


def _every_policy(reason: str) -> timeseries.Panel:
    return lines(
        f"What each policy would refuse as {reason}",
        "Each image is judged under every policy, whatever was answered. Pairs are named pair / policy; a policy of "
        "one score refuses for one reason.",
        "percentunit",
        query(f'confgate:policy_refusal_rate:10m{{{VERSION},reason="{reason}"}}', "{{score}} / {{policy}}"),
    )


def _by_label(reason: str, hint: str) -> timeseries.Panel:
    chosen = f'{VERSION},reason="{reason}"'
    return lines(
        f"Refused as {reason}, by the label they would have had",
        f"Images per second. {hint}",
        "cps",
        query(f"sum by (label) (rate(confgate_rejections_by_label_total{{{chosen}}}[$__rate_interval]))", "{{label}}"),
        stacked=True,
    )


def _speed() -> list[Panel]:
    shed = f'sum(rate(confgate_requests_total{{{REQUESTS},outcome="shed"}}[$__rate_interval]))'
    asked = f"sum(rate(confgate_requests_total{{{REQUESTS}}}[$__rate_interval]))"
    of_version = "sum by (instance, version)"
    busy = f"{of_version} (rate(confgate_inference_duration_seconds_sum{{{MODEL}}}[$__rate_interval]))"
    computing = f"sum({busy} / {of_version} (confgate_inference_workers{{{MODEL}}}))"
    images = f"sum(rate(confgate_batch_size_sum{{{MODEL}}}[$__rate_interval]))"
    batches = f"sum(rate(confgate_batch_size_count{{{MODEL}}}[$__rate_interval]))"
    return [
        lines(
            "Latency of requests",
            "From a request's first byte to its answer, so that a slow client counts too.",
            "s",
            query(quantile(0.5, "confgate_request_duration_seconds", MODEL), "median"),
            query(quantile(0.95, "confgate_request_duration_seconds", MODEL), "95 %"),
            query(quantile(0.99, "confgate_request_duration_seconds", MODEL), "99 %"),
        ),
        lines(
            "Where the time goes",
            "95 % of the images wait less, and 95 % of the requests are decoded and of the batches computed in less.",
            "s",
            query(quantile(0.95, "confgate_queue_duration_seconds", MODEL), "waiting"),
            query(quantile(0.95, "confgate_decode_duration_seconds", MODEL), "decoding"),
            query(quantile(0.95, "confgate_inference_duration_seconds", MODEL), "inference"),
        ),
        lines(
            "Queue",
            "Images that wait, against the limit beyond which requests are shed.",
            "short",
            query(f"sum(confgate_queue_images{{{MODEL}}})", "waiting"),
            query(f"sum(confgate_queue_limit_images{{{MODEL}}})", "limit"),
            width=8,
        ),
        lines(
            "Batch size",
            "Images per batch. Batches form by themselves while the one before is computed: bigger means busier.",
            "short",
            query(f"{images} / {batches}", "mean"),
            query(quantile(0.95, "confgate_batch_size", MODEL), "95 %"),
            width=8,
        ),
        limits(
            lines(
                "Saturation",
                "Share of the time that the model's workers compute, and share of the requests that are shed. Workers "
                "that are always busy are full: add replicas.",
                "percentunit",
                query(f'{computing} / count(up{{job="confgate"}} == 1)', "workers busy"),
                query(f"{shed} / {asked}", "shed"),
                width=8,
            ),
            [(None, "transparent"), (0.9, "red")],
        ),
    ]
