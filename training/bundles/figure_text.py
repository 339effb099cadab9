"""The figures of bundle.json, looked up and written as text: what a card and its first screen share."""

from service.model.bundle import Figure, Manifest
from service.model.pairs import RefusedShare
from service.model.scores import ScoreName

NOT_MEASURED = "not measured"


def figure_of(
    manifest: Manifest, metric: str, data: str, score: str | None = None, policy: str | None = None
) -> Figure | None:
    """The figure with this name, data, score and policy; None if it was not measured."""
    wanted = (metric, data, score, policy)
    return next((f for f in manifest.evaluation if (f.metric, f.data, f.score, f.policy) == wanted), None)


def own_test_of(manifest: Manifest) -> str | None:
    """The name of the test images of the bundle's own kind; None if nothing was measured on such images."""
    return next((figure.data for figure in manifest.evaluation if figure.metric == "accuracy"), None)


def ood_sets_of(manifest: Manifest, dataset: str) -> list[str]:
    """The sets that the bundle was evaluated on besides its own test split, in order."""
    return list(dict.fromkeys(f.data for f in manifest.evaluation if f.data != f"{dataset} test"))


def share(figure: Figure | None) -> str:
    return NOT_MEASURED if figure is None else f"{figure.value:.2%}"


def counted(figure: Figure | None) -> str:
    """With its n."""
    return NOT_MEASURED if figure is None else f"{figure.value:.2%} (n = {figure.n:,})"


def expected(refused: RefusedShare) -> str:
    """With its interval."""
    return f"{refused.rate:.2%} ({refused.interval[0]:.2%} to {refused.interval[1]:.2%})"


def threshold(manifest: Manifest, score: ScoreName, value: float | None) -> str:
    """As answers show it; one that refuses nothing is 0."""
    return "0" if value is None else f"{float(manifest.scores[score].shown(value)):.4f}"
