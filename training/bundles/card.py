"""CARD.md: what a bundle is, how good it is, and what it must not be used for, from the same figures as bundle.json."""

from collections.abc import Iterable

from service.model.bundle import Figure, Manifest, Policy
from service.model.pairs import RefusedShare
from training.metrics.mixed_traffic import MIXED_AUGRC, MIXED_RISK


def write_card(manifest: Manifest, dataset: str, what: str, how: str, epsilon_how: str) -> str:
    """The card as Markdown: it begins with `what` and ends with `how`."""
    test = f"{dataset} test"
    lines = [
        f"# {manifest.name} version {manifest.version}",
        "",
        f"{what} Input: {manifest.input.width}×{manifest.input.height} RGB. Classes: {_classes(manifest)}.",
        "",
        *_default_gate(manifest, test),
        "All figures are measured on the exported ONNX graph run by ONNX Runtime on the CPU.",
        "",
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


def _classes(manifest: Manifest) -> str:
    if len(manifest.labels) <= 20:
        return ", ".join(manifest.labels)
    return f"{', '.join(manifest.labels[:10])} and {len(manifest.labels) - 10} more"


def _default_gate(manifest: Manifest, test: str) -> Iterable[str]:
    """The first screen: what the default gate refuses and why, how right the accepted are, what it catches."""
    default = manifest.default
    if default.score is not None or manifest.pairs is None:
        yield f"The default is score `{default.score}` under policy `{default.policy}`."
        yield ""
        return
    policy = default.policy
    yield "## The default gate"
    yield ""
    pair = manifest.pairs.policies[policy]
    yield (
        f"Policy `{policy}` refuses an image as *unfamiliar* when its familiarity is at most "
        f"{_threshold(manifest, 'typicality', pair.familiarity)}, and as *unsure* when its largest probability is at "
        f"most {_threshold(manifest, 'certainty', pair.certainty)}."
    )
    accuracy = _figure(manifest, "accuracy", test)
    if accuracy is None:
        expected = pair.expected
        yield (
            f"Expected on images like the calibration images: {_rate(expected.total)} refused, "
            f"{_rate(expected.unfamiliar)} unfamiliar and {_rate(expected.unsure)} unsure (n = {pair.n:,})."
        )
        yield ""
        return
    yield ""
    yield "| images | refused | as unfamiliar | as unsure | accuracy of accepted |"
    yield "|---|---|---|---|---|"
    kept = _counted(_figure(manifest, "accepted_accuracy", test, None, policy))
    refused = _refused(manifest, test, policy)
    yield f"| {test} (n = {accuracy.n:,}) | {refused} | {kept}; without a gate {_share(accuracy)} |"
    for data in ood_sets_of(manifest, test.removesuffix(" test")):
        rate = _figure(manifest, "rejection_rate", data, None, policy)
        yield f"| {data} (n = {rate.n if rate else 0:,}) | {_refused(manifest, data, policy)} | |"
    yield ""


def _refused(manifest: Manifest, data: str, policy: str) -> str:
    metrics = ("rejection_rate", "rejection_rate_unfamiliar", "rejection_rate_unsure")
    return " | ".join(_share(_figure(manifest, metric, data, None, policy)) for metric in metrics)


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
        refused = _share(_figure(manifest, "rejection_rate", test, None, name))
        kept = _counted(_figure(manifest, "accepted_accuracy", test, None, name))
        yield (
            f"| {name} | {_threshold(manifest, 'typicality', pair.familiarity)} | "
            f"{_threshold(manifest, 'certainty', pair.certainty)} | {_rate(pair.expected.total)}: "
            f"{_rate(pair.expected.unfamiliar)}, {_rate(pair.expected.unsure)} | {pair.n:,} | {refused} | {kept} | "
            f"{pair.how} |"
        )
    yield ""


def _threshold(manifest: Manifest, score: str, threshold: float | None) -> str:
    found = manifest.scores["typicality" if score == "typicality" else "certainty"]
    return "0" if threshold is None else f"{float(found.shown(threshold)):.4f}"


def _rate(share: RefusedShare) -> str:
    return f"{share.rate:.2%} ({share.interval[0]:.2%} to {share.interval[1]:.2%})"


def _mixed_traffic(manifest: Manifest, test: str) -> Iterable[str]:
    """The default pair beside each single score, on traffic with OOD images among it."""
    sets = ood_sets_of(manifest, test.removesuffix(" test"))
    policy = manifest.default.policy
    if manifest.default.score is not None or not sets:
        return
    yield "## One OOD image in five"
    yield ""
    yield (
        f"Traffic of 80 % test images and 20 % OOD images, mean over {', '.join(sets)}. An accepted OOD image is a "
        f"wrong answer. Each score alone has the threshold that refuses as many calibration images as `{policy}`."
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
    found = [_figure(manifest, metric, data, score, policy) for data in sets]
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
    accuracy = _figure(manifest, "accuracy", data)
    if accuracy is None:
        yield "Not measured: no test images were given."
        return
    yield f"Accuracy on {data} with no gate: **{accuracy.value:.2%}** (n = {accuracy.n:,})."
    yield ""
    yield "| score | policy | refused | accuracy of what is accepted | AUROC right / wrong |"
    yield "|---|---|---|---|---|"
    for score_name, score in manifest.scores.items():
        separation = _share(_figure(manifest, "auroc_misclassified", data, score_name))
        for policy_name in score.policies:
            refused = _counted(_figure(manifest, "rejection_rate", data, score_name, policy_name))
            kept = _counted(_figure(manifest, "accepted_accuracy", data, score_name, policy_name))
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
                (policy, _figure(manifest, "rejection_rate", data, score_name, policy)) for policy in score.policies
            ]
            n = next((f" (n = {rate.n:,})" for _, rate in found if rate is not None), "")
            refused = ", ".join(f"{policy} {_share(rate)}" for policy, rate in found)
            area, passed = (_share(_figure(manifest, m, data, score_name)) for m in ("auroc", "fpr_at_95_tpr"))
            yield f"| {data}{n} | {score_name} | {area} | {passed} | {refused} |"
    yield ""


def ood_sets_of(manifest: Manifest, dataset: str) -> list[str]:
    """The sets that the bundle was evaluated on besides its own test split, in order."""
    return list(dict.fromkeys(f.data for f in manifest.evaluation if f.data != f"{dataset} test"))


def _figure(
    manifest: Manifest, metric: str, data: str, score: str | None = None, policy: str | None = None
) -> Figure | None:
    wanted = (metric, data, score, policy)
    return next((f for f in manifest.evaluation if (f.metric, f.data, f.score, f.policy) == wanted), None)


def _share(figure: Figure | None) -> str:
    return "not measured" if figure is None else f"{figure.value:.2%}"


def _counted(figure: Figure | None) -> str:
    return "not measured" if figure is None else f"{figure.value:.2%} (n = {figure.n:,})"
