"""`confgate-train learn-confidence`: a classifier that is finished gets a learned confidence, in a new bundle."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.model.bundle import Bundle, Manifest
from training.bundles.bank import with_bank
from training.bundles.card import write_card
from training.bundles.finished_classifier import FinishedClassifier, Given, finished_classifier
from training.bundles.learned_branch import LearnedBranch, learn_branch
from training.bundles.made_by import how_it_was_made
from training.bundles.write import Graphs, assemble_bundle, check_new
from training.calibration.calibrate import Calibrated, calibrate_graphs
from training.calibration.policies import USUAL, Wanted
from training.calibration.worth import worth_of_witnesses
from training.data.seen import hashes_of
from training.graphs.perturbed import perturbed_or_note
from training.learning.branch_fit import BranchSettings


@dataclass(frozen=True)
class WithConfidence:
    """The new bundle, notes about it, and what its confidence is worth."""

    bundle: Bundle
    calibrated: Calibrated
    notes: tuple[str, ...]
    worth: tuple[str, ...]


def learn_confidence(
    given: Given, target: Path, weights: Path, settings: BranchSettings, views: int | None, wanted: Wanted = USUAL
) -> WithConfidence:
    """Learns a branch, calibrates and writes the bundle. `weights` is a folder where large weights lie meanwhile."""
    check_new(target)
    found = finished_classifier(given, weights)
    learned = learn_branch(found.forward, found.shape, len(found.labels), found.learning, settings, views)
    banked = with_bank(learned.forward, found.shape, found.evidence)
    perturbed = perturbed_or_note(banked.forward)
    graphs = Graphs(banked.forward, perturbed.graph)
    opened = graphs.opened(found.shape)
    calibrated = calibrate_graphs(opened, banked.evidence, wanted)
    of_graphs = (note for note in (banked.note, perturbed.note) if note is not None)
    worth = worth_of_witnesses(calibrated)
    bundle = assemble_bundle(
        target,
        graphs,
        opened,
        found.labels,
        banked.evidence,
        calibrated,
        found.provenance,
        card=lambda manifest, made: _card(manifest, found, learned, worth, made.epsilon_how),
        trained_on=np.union1d(found.known, hashes_of(found.learning.images.images, found.shape)),
    )
    notes = (*found.notes, *learned.notes, *of_graphs, *calibrated.notes)
    return WithConfidence(bundle, calibrated, notes, tuple(worth))


def _card(
    manifest: Manifest, found: FinishedClassifier, learned: LearnedBranch, worth: list[str], epsilon_how: str
) -> str:
    made = manifest.provenance
    measured = "\n".join(worth)
    how = how_it_was_made(made.commands, f"{learned.facts}. Network of code {made.git_sha}; data {made.data}.")
    what = f"{found.what} {learned.facts}. On calibration images it is worth this:\n\n```\n{measured}\n```"
    return write_card(manifest, found.evidence.name, what, how, epsilon_how)
