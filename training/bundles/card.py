"""CARD.md: what a bundle is, how good it is, and what it must not be used for, from the same figures as bundle.json."""

from collections.abc import Iterable

from service.model.bundle import Figure, Manifest, Policy


def write_card(manifest: Manifest, dataset: str, what: str, how: str, epsilon_how: str) -> str:
    """The card as Markdown: it begins with `what` and ends with `how`."""
    lines = [
        f"# {manifest.name} version {manifest.version}",
        "",
        f"{what} Input: {manifest.input.width}×{manifest.input.height} RGB. Classes: {', '.join(manifest.labels)}.",
        "",
        "All figures are measured on the exported ONNX graph run by ONNX Runtime on the CPU.",
        "",
        "## On its own kind of images",
        "",
        *_in_distribution(manifest, f"{dataset} test"),
        "",
        *_out_of_distribution(manifest, dataset),
        "## Thresholds",
        "",
        f"The default is score `{manifest.default.score}` under policy `{manifest.default.policy}`. An image is "
        "refused when its score is at or below the threshold; thresholds are shown between 0 and 1, as in answers."
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
        "likelihood on the calibration images; it does not touch the gate.",
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


def _typicality_line(manifest: Manifest) -> Iterable[str]:
    reference = manifest.scores["typicality"].typicality if "typicality" in manifest.scores else None
    if reference is not None:
        yield (
            f"- `typicality` is a p-value: the share of {reference.n:,} correctly classified calibration images that "
            f"look at least as unusual ({' or '.join(reference.components)} as low). It cannot fall below "
            f"{0.5 / (reference.n + 1):.1g}."
        )


def _promise_line(manifest: Manifest) -> Iterable[str]:
    if any("risk" in score.policies for score in manifest.scores.values()):
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


def _out_of_distribution(manifest: Manifest, dataset: str) -> Iterable[str]:
    sets = ood_sets_of(manifest, dataset)
    if not sets:
        return
    yield "## On out-of-distribution (OOD) images"
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
