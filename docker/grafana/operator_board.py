"""The operator's dashboard: is the service healthy, and does it refuse the share that calibration expects?"""

from grafana_foundation_sdk.builders import dashboard
from panels import (
    MODEL,
    POLICY,
    SCORE,
    VERSION,
    Panel,
    Steps,
    band,
    dashed,
    frame,
    heat_map,
    limits,
    lines,
    number,
    quantile,
    query,
)

LIVE = f"confgate:policy_rejection_rate:10m{{{POLICY}}}"
EXPECTED = f"confgate:policy_expected_rejection_rate{{{POLICY}}}"
TOLERANCE = f"confgate:policy_rejection_rate:tolerance{{{POLICY}}}"
# A request for an unknown model is counted with an empty label.
REQUESTS = 'model=~"$model|"'
PLAIN: Steps = [(None, "text")]


def operator_board() -> dashboard.Dashboard:
    board = frame(
        "confgate: operator",
        "confgate-operator",
        "Is the service well, and does it refuse as many images as its calibration expects?",
        several_versions=False,
    )
    for title, panels in (
        ("Now", _now()),
        ("Traffic", _traffic()),
        ("The gate", _gate()),
        ("Speed and saturation", _speed()),
    ):
        board.with_row(dashboard.Row(title))
        for panel in panels:
            board.with_panel(panel)
    return board


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
            "Share of the images of the last 10 minutes that the chosen policy refuses.",
            "percentunit",
            query(LIVE, "refused"),
            PLAIN,
        ),
        number(
            "Off by",
            "How far that is from the expected share, in parts of what is tolerated. Above 100 % for 15 minutes, "
            "ConfgateRejectionRateOff fires.",
            "percentunit",
            query(f"abs({LIVE} - {EXPECTED}) / {TOLERANCE}", "of the tolerance"),
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
            "Images by decision",
            "Images per second by what was answered, under the policy that each request asked for.",
            "cps",
            query(
                f"sum by (decision) (rate(confgate_predictions_total{{{VERSION}}}[$__rate_interval]))",
                "{{decision}}",
            ),
            stacked=True,
        ),
    ]


def _gate() -> list[Panel]:
    return [
        band(
            dashed(
                lines(
                    "Refused share against what calibration expects",
                    "The chosen policy over 10 minutes. The band is the larger of 2 points, a quarter of the "
                    "expected rate and 4 standard errors. Outside for 15 minutes, ConfgateRejectionRateOff fires.",
                    "percentunit",
                    query(LIVE, "live"),
                    query(EXPECTED, "expected"),
                    query(f"{EXPECTED} + {TOLERANCE}", "upper"),
                    query(f"clamp_min({EXPECTED} - {TOLERANCE}, 0)", "lower"),
                ),
                "expected",
            ),
            lower="lower",
            upper="upper",
        ),
        lines(
            "What each policy would refuse",
            "Each image is judged under every policy of every score computed for it, whatever was answered.",
            "percentunit",
            query(f"confgate:policy_rejection_rate:10m{{{VERSION}}}", "{{score}} / {{policy}}"),
        ),
        heat_map(
            "Confidence over time",
            "Images by the chosen score. What the model knows gathers at the top; what it does not, below.",
            "none",
            f"sum by (le) (increase(confgate_confidence_bucket{{{SCORE}}}[$__rate_interval]))",
        ),
        lines(
            "Refused images by the label they would have had",
            "One label that stands out points at one kind of input; all labels together, at the source of the images.",
            "cps",
            query(
                f"sum by (label) (rate(confgate_rejections_by_label_total{{{VERSION}}}[$__rate_interval]))",
                "{{label}}",
            ),
            stacked=True,
        ),
    ]


def _speed() -> list[Panel]:
    shed = f'sum(rate(confgate_requests_total{{{REQUESTS},outcome="shed"}}[$__rate_interval]))'
    asked = f"sum(rate(confgate_requests_total{{{REQUESTS}}}[$__rate_interval]))"
    computing = f"sum(rate(confgate_inference_duration_seconds_sum{{{MODEL}}}[$__rate_interval]))"
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
                "Share of the time that the device computes, and share of the requests that are shed. A device "
                "that is always busy is full: add replicas.",
                "percentunit",
                query(f'{computing} / count(up{{job="confgate"}} == 1)', "device busy"),
                query(f"{shed} / {asked}", "shed"),
                width=8,
            ),
            [(None, "transparent"), (0.9, "red")],
        ),
    ]
