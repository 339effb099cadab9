"""A bundle's next version: the same network under new thresholds.

The graphs stay the same, byte for byte, unless they have no bank of neighbours yet.
"""

import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from service.model.bundle import Bundle, Default, Figure, Manifest, Provenance, Score
from service.model.command_line import CommandLine
from service.model.manifest import HashedFile
from service.model.pairs import Pairs
from service.model.scores import PREPROCESSED_SCORES, ScoreName
from training.bundles.bank import with_bank
from training.bundles.card import write_card
from training.bundles.made_by import chain, facts_of_card, how_it_was_made
from training.bundles.recorded_images import RECALIBRATED, described_images
from training.bundles.write import (
    Graphs,
    check_new,
    described,
    figures_of,
    git_revision,
    publish,
    version_of,
    write_graphs,
)
from training.calibration.calibrate import Calibrated, Evidence, Traffic
from training.calibration.open_graphs import OpenGraphs
from training.calibration.pairs import pair_scores
from training.calibration.pairs import with_target_rejection as pairs_with_target_rejection
from training.calibration.policies import TARGET_REJECTION, target_rejection_policy
from training.errors import ExportError
from training.graphs.perturbed import Perturbed, perturbed_or_note
from training.graphs.weights import load_without_large_weights


def opened_bundle(bundle: Bundle) -> OpenGraphs:
    """The graphs of a bundle on disk."""
    graphs = bundle.manifest.graphs
    perturbed = bundle.graph_path("perturbed") if "perturbed" in graphs else None
    return OpenGraphs.of(bundle.graph_path("forward"), perturbed, bundle.manifest.input)


@dataclass(frozen=True)
class Prepared:
    """What a bundle is calibrated with: its graphs, or new ones that have a bank of neighbours."""

    opened: OpenGraphs
    evidence: Evidence
    graphs: Graphs | None = None  # None: those of the bundle
    note: str | None = None


def prepare(bundle: Bundle, evidence: Evidence) -> Prepared:
    """Adds a bank of neighbours to graphs that have none."""
    shape = bundle.manifest.input
    forward = load_without_large_weights(bundle.graph_path("forward"))
    banked = with_bank(forward, shape, evidence)
    if banked.forward is forward:
        return Prepared(opened_bundle(bundle), banked.evidence, note=banked.note)
    had_perturbed = "perturbed" in bundle.manifest.graphs
    perturbed = perturbed_or_note(banked.forward) if had_perturbed else Perturbed(None)
    graphs = Graphs(banked.forward, perturbed.graph)
    return Prepared(graphs.opened(shape), banked.evidence, graphs, perturbed.note)


def with_target_rejection(
    bundle: Bundle, opened: OpenGraphs, traffic: Traffic
) -> tuple[dict[ScoreName, Score], Pairs | None]:
    """Every score of the bundle, and its pairs, with their own policies and one more, from unlabelled images."""
    manifest = bundle.manifest
    preprocessed = manifest.preprocessed_score
    outputs = opened.run(traffic.images, None if preprocessed is None else manifest.scores[preprocessed].epsilon)
    scores = {
        name: score.model_copy(
            update={
                "policies": score.policies
                | {TARGET_REJECTION: target_rejection_policy(score.of_images(name, outputs), traffic.rate)}
            }
        )
        for name, score in manifest.scores.items()
    }
    if manifest.pairs is None:
        return scores, None
    theirs = pair_scores(manifest.scores, outputs)
    return scores, pairs_with_target_rejection(manifest.pairs, manifest.default, theirs, traffic.rate)


def write_recalibrated(
    bundle: Bundle,
    prepared: Prepared,
    calibrated: Calibrated,
    default: Default,
    target: Path,
    command: CommandLine,
) -> Bundle:
    """A new version from labelled images: every score, policy and figure is computed again."""
    opened, evidence = prepared.opened, prepared.evidence
    figures = figures_of(opened, evidence, calibrated) if evidence.test is not None else _still_true(bundle, calibrated)
    with tempfile.TemporaryDirectory() as folder:
        files = _files(bundle)
        if prepared.graphs is not None:
            kept = bundle.manifest.training_images
            remembered = {} if kept is None else {kept.file: files[kept.file]}
            files = write_graphs(prepared.graphs, Path(folder)) | remembered
        manifest = _next_version(
            bundle, target, described_images(evidence.calibration, opened.shape, evidence.name), command
        ).model_copy(
            update={
                "schema_version": 2,
                **(described(files) if prepared.graphs is not None else {}),
                "temperature": calibrated.temperature,
                "scores": calibrated.scores,
                "pairs": calibrated.pairs,
                "default": default,
                "evaluation": tuple(figures),
            }
        )
        card = _card(bundle, manifest, calibrated.epsilon_how, same_graphs=prepared.graphs is None)
        return publish(target, manifest, files, card, evidence.calibration.images[:1], opened)


def write_with_target_rejection(
    bundle: Bundle,
    opened: OpenGraphs,
    scores: dict[ScoreName, Score],
    pairs: Pairs | None,
    traffic: Traffic,
    target: Path,
    command: CommandLine,
) -> Bundle:
    """A new version from unlabelled images: the old policies and figures stay, and the new policy is the default."""
    what = f"policy {TARGET_REJECTION} from {len(traffic.images)} unlabelled images"
    default = Default(score=bundle.manifest.default.score, policy=TARGET_REJECTION)
    update = {"scores": scores, "pairs": pairs, "default": default}
    manifest = _next_version(bundle, target, what, command).model_copy(update=update)
    how = f"ε is that of version {bundle.manifest.version}"
    card = _card(bundle, manifest, how)
    return publish(target, manifest, _files(bundle), card, traffic.images[:1], opened)


def check_target(bundle: Bundle, target: Path) -> None:
    """As `check_new`, and a new version keeps its model's name."""
    check_new(target)
    if target.parent.name != bundle.manifest.name:
        raise ExportError(
            f"--out is {target}, expected models/{bundle.manifest.name}/VERSION: a new version keeps its model's name."
        )


def _next_version(bundle: Bundle, target: Path, what: str, command: CommandLine) -> Manifest:
    old = bundle.manifest
    return old.model_copy(
        update={
            "version": version_of(target),
            "created": datetime.now(UTC).replace(microsecond=0),
            "provenance": Provenance(
                git_sha=old.provenance.git_sha,
                recipe=old.provenance.recipe,
                seed=old.provenance.seed,
                data=f"{old.provenance.data.split(RECALIBRATED)[0]}{RECALIBRATED} from version {old.version}, "
                f"with code {git_revision()}, on {what}",
                commands=chain(old.provenance.commands, command),
                resolved_recipe=old.provenance.resolved_recipe,
            ),
        }
    )


def _files(bundle: Bundle) -> dict[str, Path]:
    files: tuple[HashedFile, ...] = bundle.manifest.files
    return {file.file: bundle.folder / file.file for file in files}


def _still_true(bundle: Bundle, calibrated: Calibrated) -> list[Figure]:
    """Old figures that depend on no threshold, of scores that are computed as before."""
    old = bundle.manifest
    changed = {
        name
        for name in old.scores
        if name in PREPROCESSED_SCORES
        and (name not in calibrated.scores or old.scores[name].epsilon != calibrated.scores[name].epsilon)
    }
    # Their references, the temperature or the bank are new, so their old figures do not hold for this version.
    changed |= {"typicality", "certainty", "neighbours"}
    return [figure for figure in old.evaluation if figure.policy is None and figure.score not in changed]


def _how_before(bundle: Bundle) -> str:
    """How the version that this one is made from was made: it may not be kept."""
    facts = facts_of_card(bundle.folder)
    return f"\n\nVersion {bundle.manifest.version}: {facts}" if facts else ""


def _card(bundle: Bundle, manifest: Manifest, epsilon_how: str, same_graphs: bool = True) -> str:
    old = bundle.manifest
    graphs = "its graphs are the same, byte for byte" if same_graphs else "its network is the same, with neighbours"
    what = (
        f"Version {old.version} under new thresholds: {graphs}. It was trained as "
        f"`{old.provenance.recipe}` on {old.provenance.data.split(RECALIBRATED)[0]}."
    )
    made = manifest.provenance
    how = how_it_was_made(made.commands, f"Network of code {made.git_sha}; {made.data}.{_how_before(bundle)}")
    accuracy = next((f.data.removesuffix(" test") for f in manifest.evaluation if f.metric == "accuracy"), "its")
    return write_card(manifest, accuracy, what, how, epsilon_how)
