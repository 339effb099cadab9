"""The parts of both dashboards: a few kinds of panel, query and variable, and the frame around them."""

from collections.abc import Iterable, Sequence

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

# The uid of provisioning/datasources/prometheus.yml.
SOURCE = models.DataSourceRef(type_val="prometheus", uid="prometheus")
# (value from which a colour applies, colour); the first value is None: minus infinity.
Steps = Sequence[tuple[float | None, str]]
Panel = timeseries.Panel | stat.Panel | heatmap.Panel

MODEL = 'model="$model"'
VERSION = f'{MODEL},version=~"$version"'
SCORE = f'{VERSION},score="$score"'
# Refusals for a low score of these are "unsure", for one of the others "unfamiliar"; as in service/model/scores.py.
CERTAINTY_SCORES = "certainty|max_softmax|odin"


def frame(title: str, uid: str, description: str, several_versions: bool) -> dashboard.Dashboard:
    """An empty dashboard with its variables, annotations and links."""
    loads = f"confgate_model_ready{{{MODEL}}} == 1 unless confgate_model_ready{{{MODEL}}} offset 1m == 1"
    versions = f"label_values(confgate_model_ready{{{MODEL}}}, version)"
    scores = f"label_values(confgate_confidence_count{{{MODEL}}}, score)"
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["confgate"])
        .readonly()
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("30s")
        .time("now-6h", "now")
        .annotation(annotation("Model loads", loads, "blue"))
        .annotation(annotation("Alerts", f'ALERTS{{alertstate="firing",{MODEL}}}', "red"))
        .link(
            dashboard.DashboardLink("confgate")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["confgate"])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(variable("model", "Model", "A served model", "label_values(confgate_model_ready, model)"))
        .with_variable(variable("version", "Version", "Newest first", versions, several=several_versions, newest=True))
        .with_variable(variable("score", "Score", "Of the panels that show how a score is distributed", scores))
    )


def in_force(series: str) -> str:
    """Of a series the part whose policy decides for requests that name none."""
    return f"{series} and on (model, version, policy, score) confgate:policy_in_force"


def refusals(name: str, of_all: str, reason: str) -> str:
    """A series of refusals for one reason, under the gate in force.

    A gate of one score has one reason: for the other the series is 0, which is what that gate refuses for it.
    """
    found = f'{name}{{{VERSION},reason="{reason}"}} or ignoring (reason) 0 * {of_all}{{{VERSION}}}'
    return f"({in_force(f'({found})')})"


def refused_share(reason: str) -> str:
    return refusals("confgate:policy_refusal_rate:10m", "confgate:policy_rejection_rate:10m", reason)


def expected_share(reason: str) -> str:
    return refusals("confgate:policy_expected_refusals", "confgate:policy_expected_rejection_rate", reason)


def tolerated(reason: str) -> str:
    return refusals("confgate:policy_refusal_rate:tolerance", "confgate:policy_rejection_rate:tolerance", reason)


def quantile(q: float, metric: str, select: str, by: str = "le") -> str:
    return f"histogram_quantile({q}, sum by ({by}) (rate({metric}_bucket{{{select}}}[$__rate_interval])))"


def query(expr: str, legend: str = "") -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expr).legend_format(legend).range()


def lines(
    title: str,
    description: str,
    unit: str,
    *queries: prometheus.Dataquery,
    width: int = 12,
    stacked: bool = False,
) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .height(8)
        .span(width)
        .fill_opacity(25 if stacked else 0)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return panel.targets(_letters(queries))


def band(panel: timeseries.Panel, lower: str, upper: str) -> timeseries.Panel:
    """Draws the two named series as the edges of one shaded band."""
    edge = [_option("custom.lineWidth", 0), _option("color", {"mode": "fixed", "fixedColor": "green"})]
    fill = [_option("custom.fillBelowTo", lower), _option("custom.fillOpacity", 20)]
    return panel.override_by_name(lower, edge).override_by_name(upper, edge + fill)


def dashed(panel: timeseries.Panel, pattern: str) -> timeseries.Panel:
    """Draws expected values as dashed lines, unlike measured ones."""
    return panel.override_by_regexp(pattern, [_option("custom.lineStyle", {"fill": "dash", "dash": [8, 8]})])


def limits(panel: timeseries.Panel, steps: Steps) -> timeseries.Panel:
    """Draws the values of the steps as lines across the panel."""
    return panel.thresholds(_thresholds(steps)).thresholds_style(
        common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
    )


def number(
    title: str,
    description: str,
    unit: str,
    one_query: prometheus.Dataquery,
    steps: Steps,
    show_name: bool = False,
) -> stat.Panel:
    text_mode = common_models.BigValueTextMode.NAME if show_name else common_models.BigValueTextMode.AUTO
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .height(4)
        .span(4)
        .text_mode(text_mode)
        .graph_mode(common_models.BigValueGraphMode.NONE if show_name else common_models.BigValueGraphMode.AREA)
        .color_mode(common_models.BigValueColorMode.VALUE)
        .thresholds(_thresholds(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    return panel.targets(_letters([one_query]))


def heat_map(title: str, description: str, unit: str, buckets: str, width: int = 12) -> heatmap.Panel:
    """`buckets` counts the observations of a classic histogram by its label le."""
    panel = (
        heatmap.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .height(8)
        .span(width)
        .unit("short")
        .calculate(False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_models.HeatmapColorMode.SCHEME)
            .scheme("Blues")
            .scale(heatmap_models.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .steps(64)
            .reverse(False)
        )
        .cell_values(heatmap.CellValues().unit("short"))
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common_models.AxisPlacement.LEFT))
        .mode(common_models.TooltipDisplayMode.SINGLE)
        .show_y_histogram()
        .hide_legend()
    )
    return panel.targets(_letters([query(buckets, "{{le}}").format(PromQueryFormat.HEATMAP)]))


def variable(
    name: str, label: str, description: str, values: str, several: bool = False, newest: bool = False
) -> dashboard.QueryVariable:
    """A choice among label values: `newest` sorts the highest number first, `several` selects all by default."""
    sort = models.VariableSort.NUMERICAL_DESC if newest else models.VariableSort.ALPHABETICAL_ASC
    choice = (
        dashboard.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(SOURCE)
        .query({"query": values, "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(sort)
        .multi(several)
        .include_all(several)
    )
    return choice.current(models.VariableOption(text=["All"], value=["$__all"], selected=True)) if several else choice


def annotation(name: str, expr: str, color: str) -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color).expr(expr)


def _letters(queries: Iterable[prometheus.Dataquery]) -> list[Builder[Dataquery]]:
    """Names queries A, B, C … as Grafana does."""
    return [one_query.ref_id(chr(ord("A") + i)) for i, one_query in enumerate(queries)]


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in steps])
    )


def _option(name: str, value: object) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val=name, value=value)
