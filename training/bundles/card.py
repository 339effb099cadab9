"""CARD.md: what a bundle is, how good it is, and what it must not be used for, from the same figures as bundle.json."""

from collections.abc import Iterable

from service.model.bundle import Manifest, Policy
from training.bundles.figure_text import counted, expected, figure_of, ood_sets_of, own_test_of, share, threshold
from training.bundles.first_screen import ROWS, by_reason, first_screen, is_pair
from training.metrics.mixed_traffic import MIXED_AUGRC, MIXED_RISK, OOD_SHARE


def write_card(manifest: Manifest, dataset: str, what: str, how: str, epsilon_how: str) -> str:
    """The card as Markdown: the first screen, then `what` the model is, and at the end `how` it was made."""
    test = f"{dataset} test"
    lines = [
        *first_screen(manifest),
        "",
        "## The model",
        "",
        f"{what} Input: {manifest.input.width}×{manifest.input.height} RGB{_batch(manifest)}. "
        f"Classes: {_classes(manifest)}.",
        "",
        "All figures are measured on the exported ONNX graph run by ONNX Runtime on the CPU.",
        "",
        *_every_set(manifest),
        *_pairs(manifest, test),
        "## Single scores on in-distribution images",
        "",
        *_in_distribution(manifest, test),
        "",
        *_out_of_distribution(manifest, test),
        *_mixed_traffic(manifest, test),
        "## Thresholds of single scores",
        "",
        "A request with `score=` is gated on that score alone. An image is refused when its score is at or below the "
        "threshold; thresholds are shown between 0 and 1, as in answers."
        + _display_sentence(manifest)
        + _epsilon_sentence(manifest, epsilon_how),
        "",
        "| score | policy | threshold | expected to refuse (95 % interval) | n | how |",
        "|---|---|---|---|---|---|",
    ]
    for score_name, score in manifest.scores.items():
        for policy_name, policy in score.policies.items():
            lines.append(
                f"| {score_name} | {policy_name} | {float(score.shown(policy.threshold)):.4f} | "
                f"{policy.expected_rejection_rate:.2%}{_interval(policy)} | {policy.n:,} | {policy.how} |"
            )
    lines += [
        "",
        f"Probabilities are shown at temperature {manifest.temperature:.3f}, which minimises the negative log "
        "likelihood on calibration images.",
        "",
        "## Limits",
        "",
        "- The expected rejection rates hold for images like the calibration images. More refusals than that in "
        "production mean that the traffic differs from them.",
        *_typicality_line(manifest),
        *_promise_line(manifest),
        "- An OOD image that looks like one of the classes may be accepted: the figures above say how often this "
        "happened on the sets named, and say nothing of other sets.",
        "- Not made for safety-critical decisions.",
        "",
        "## How it was made",
        "",
        how,
        "",
    ]
    return "\n".join(lines)


def _batch(manifest: Manifest) -> str:
    return "" if manifest.max_batch is None else f", at most {manifest.max_batch} in one run of the model"


def _classes(manifest: Manifest) -> str:
    if len(manifest.labels) <= 20:
        return ", ".join(manifest.labels)
    return f"{', '.join(manifest.labels[:10])} and {len(manifest.labels) - 10} more"


def _every_set(manifest: Manifest) -> Iterable[str]:
    """Both reasons for each of many sets: the first screen has room for those of a few."""
    own = own_test_of(manifest)
    sets = [] if own is None else ood_sets_of(manifest, own.removesuffix(" test"))
    if own is None or len(sets) < ROWS or not is_pair(manifest):
        return
    yield "## The default gate on every set"
    yield ""
    yield "| images | n | refused | as unfamiliar | as unsure |"
    yield "|---|---|---|---|---|"
    for data in (own, *sets):
        refused = figure_of(manifest, "rejection_rate", data, None, manifest.default.policy)
        yield f"| {data} | {'–' if refused is None else f'{refused.n:,}'} | {by_reason(manifest, data)} |"
    yield ""


def _pairs(manifest: Manifest, test: str) -> Iterable[str]:
    if manifest.pairs is None:
        return
    yield "## Policies: two questions"
    yield ""
    yield (
        "Familiarity is the p-value `typicality`; certainty is the largest probability. An image at or below a "
        "threshold is refused; a threshold of 0 refuses nothing."
    )
    yield ""
    yield (
        "| policy | familiarity | certainty | expected to refuse: unfamiliar, unsure | n | refused on test | "
        "accuracy of accepted | how |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, pair in manifest.pairs.policies.items():
        refused = share(figure_of(manifest, "rejection_rate", test, None, name))
        kept = counted(figure_of(manifest, "accepted_accuracy", test, None, name))
        yield (
            f"| {name} | {threshold(manifest, 'typicality', pair.familiarity)} | "
            f"{threshold(manifest, 'certainty', pair.certainty)} | {expected(pair.expected.total)}: "
            f"{expected(pair.expected.unfamiliar)}, {expected(pair.expected.unsure)} | {pair.n:,} | {refused} | "
            f"{kept} | {pair.how} |"
        )
    yield ""


def _mixed_traffic(manifest: Manifest, test: str) -> Iterable[str]:
    """The default pair beside each single score, on traffic with OOD images among it."""
    sets = ood_sets_of(manifest, test.removesuffix(" test"))
    policy = manifest.default.policy
    if manifest.default.score is not None or not sets:
        return
    yield "## One OOD image in five"
    yield ""
    yield (
        f"Traffic of {100 * (1 - OOD_SHARE):g} % test images and {100 * OOD_SHARE:g} % OOD images, mean over "
        f"{', '.join(sets)}. An accepted OOD image counts as a wrong answer. Each score alone has the threshold that "
        f"refuses as many calibration images as `{policy}`. AUGRC is the share of the traffic that is accepted and "
        "wrong, mean over every coverage."
    )
    yield ""
    yield "| gate | wrong among accepted | AUGRC × 1000 |"
    yield "|---|---|---|"
    gates: list[tuple[str, str | None, str | None]] = [(f"`{policy}`", None, policy)]
    gates += [(f"{score} alone", score, None) for score in manifest.scores]
    for label, score, pair in gates:
        risk, area = (_mean(manifest, metric, sets, score, pair) for metric in (MIXED_RISK, MIXED_AUGRC))
        shown = "–" if risk is None else f"{risk:.2%}", "–" if area is None else f"{1000 * area:.1f}"
        yield f"| {label} | {shown[0]} | {shown[1]} |"
    yield ""


def _mean(manifest: Manifest, metric: str, sets: list[str], score: str | None, policy: str | None) -> float | None:
    found = [figure_of(manifest, metric, data, score, policy) for data in sets]
    values = [figure.value for figure in found if figure is not None]
    return sum(values) / len(values) if len(values) == len(sets) else None


def _typicality_line(manifest: Manifest) -> Iterable[str]:
    reference = manifest.scores["typicality"].typicality if "typicality" in manifest.scores else None
    if reference is not None:
        yield (
            f"- `typicality` is a p-value: the share of {reference.n:,} calibration images that the model gets right "
            f"and that look at least as unusual ({' or '.join(reference.components)} as low). It cannot fall below "
            f"{0.5 / (reference.n + 1):.1g}."
        )


def _promise_line(manifest: Manifest) -> Iterable[str]:
    single = any("risk" in score.policies for score in manifest.scores.values())
    if single or (manifest.pairs is not None and "risk" in manifest.pairs.policies):
        yield (
            "- What policy `risk` promises holds for images drawn as the calibration images were, and for no others: "
            "not for OOD images, nor after the traffic has changed."
        )


def _interval(policy: Policy) -> str:
    if policy.expected_rejection_interval is None:
        return ""
    low, high = policy.expected_rejection_interval
    return f" ({low:.2%} to {high:.2%})"


def _display_sentence(manifest: Manifest) -> str:
    names = " and ".join(f"`{name}`" for name, score in manifest.scores.items() if score.display is not None)
    if not names:
        return ""
    return f" {names}: 0.5 is the median of the calibration images, 0.25 and 0.75 are their quartiles."


def _epsilon_sentence(manifest: Manifest, how: str) -> str:
    score = manifest.preprocessed_score
    if score is None:
        return ""
    return f" `{score}` moves the normalised image by ε = {manifest.scores[score].epsilon:g} first; {how}."


def _in_distribution(manifest: Manifest, data: str) -> Iterable[str]:
    accuracy = figure_of(manifest, "accuracy", data)
    if accuracy is None:
        yield "Not measured: no test images were given."
        return
    yield f"Accuracy on {data} with no gate: **{accuracy.value:.2%}** (n = {accuracy.n:,})."
    yield ""
    yield "| score | policy | refused | accuracy of what is accepted | AUROC right / wrong |"
    yield "|---|---|---|---|---|"
    for score_name, score in manifest.scores.items():
        separation = share(figure_of(manifest, "auroc_misclassified", data, score_name))
        for policy_name in score.policies:
            refused = counted(figure_of(manifest, "rejection_rate", data, score_name, policy_name))
            kept = counted(figure_of(manifest, "accepted_accuracy", data, score_name, policy_name))
            yield f"| {score_name} | {policy_name} | {refused} | {kept} | {separation} |"


def _out_of_distribution(manifest: Manifest, test: str) -> Iterable[str]:
    sets = ood_sets_of(manifest, test.removesuffix(" test"))
    if not sets:
        return
    yield "## Single scores on out-of-distribution (OOD) images"
    yield ""
    yield "| images | score | AUROC | FPR at 95 % TPR | refused, by policy |"
    yield "|---|---|---|---|---|"
    for data in sets:
        for score_name, score in manifest.scores.items():
            found = [
                (policy, figure_of(manifest, "rejection_rate", data, score_name, policy)) for policy in score.policies
            ]
            n = next((f" (n = {rate.n:,})" for _, rate in found if rate is not None), "")
            refused = ", ".join(f"{policy} {share(rate)}" for policy, rate in found)
            area, passed = (share(figure_of(manifest, m, data, score_name)) for m in ("auroc", "fpr_at_95_tpr"))
            yield f"| {data}{n} | {score_name} | {area} | {passed} | {refused} |"
    yield ""
