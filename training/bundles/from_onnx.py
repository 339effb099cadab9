"""`confgate-train import-onnx`: any ONNX image classifier becomes a bundle."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.model.bundle import Bundle, Default, Input, Provenance
from service.model.command_line import CommandLine
from service.model.scores import softmax
from training.bundles.bank import with_bank
from training.bundles.card import write_card
from training.bundles.evidence import imported_evidence
from training.bundles.made_by import how_it_was_made
from training.bundles.recorded_images import described_images
from training.bundles.write import Graphs, assemble_bundle, check_new
from training.calibration.calibrate import Calibrated, Evidence, calibrate_graphs
from training.calibration.policies import USUAL, Wanted
from training.data.files import shown
from training.graphs.foreign.classifier import Reading, read_classifier
from training.graphs.perturbed import perturbed_or_note

SAME_ANSWER = 1e-6  # of probabilities: what rounding leaves of a constant


@dataclass(frozen=True)
class Imported:
    """The new bundle, and notes about it."""

    bundle: Bundle
    notes: list[str]  # what was changed or left out, for the person at the terminal
    warning: str | None


def import_onnx(
    model: Path,
    target: Path,
    labels: tuple[str, ...],
    calibration: Path,
    test: Path | None,
    reading: Reading,
    command: CommandLine,
    resize: Input | None = None,
    ood: Sequence[str] = (),
    data_root: Path = Path("data"),
    wanted: Wanted = USUAL,
) -> Imported:
    """Reads the graph, finds its logits, calibrates on a folder of images, and writes the bundle."""
    check_new(target)
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as weights:
        classifier = read_classifier(model, len(labels), reading, Path(weights), notes)
        height, width = classifier.height, classifier.width
        rule = resize or Input(width=width, height=height, resize="stretch", interpolation="bilinear")
        shape = rule.model_copy(update={"width": width, "height": height})
        evidence = imported_evidence(calibration, test, labels, shape, list(ood), data_root)
        banked = with_bank(classifier.forward, shape, evidence)
        forward, evidence = banked.forward, banked.evidence
        if banked.note is not None:
            notes.append(banked.note)
        perturbed = perturbed_or_note(forward)
        if perturbed.note is not None:
            notes.append(perturbed.note)
        provenance = Provenance(
            git_sha="not trained here",
            recipe=f"import-onnx {model.name}",
            seed=None,
            data=_images_of(evidence, shape, calibration, test),
            commands=(command,),
            resolved_recipe={
                "labels": list(labels),
                **reading.resolved(classifier.layout),
                **shape.model_dump(mode="json"),
            },
        )
        graphs = Graphs(forward, perturbed.graph)
        opened = graphs.opened(shape)
        calibrated = calibrate_graphs(opened, evidence, wanted)
        notes += calibrated.notes
        bundle = assemble_bundle(
            target,
            graphs,
            opened,
            labels,
            evidence,
            calibrated,
            provenance,
            default=_default_of(calibrated, notes),
            card=lambda manifest, made: write_card(
                manifest,
                evidence.tested,
                f"An ONNX classifier imported from `{model.name}`.",
                how_it_was_made(
                    manifest.provenance.commands, f"It was {manifest.provenance.data}; {reading.described()}."
                ),
                made.epsilon_how,
            ),
        )
        return Imported(bundle, notes, calibrated.warning)


def _images_of(evidence: Evidence, shape: Input, calibration: Path, test: Path | None) -> str:
    """Which images set the thresholds, and which ones the figures are measured on."""
    text = f"calibrated on {described_images(evidence.calibration, shape, shown(Path(calibration.resolve().name)))}"
    if test is None or evidence.test is None:
        return text
    return f"{text}, tested on {described_images(evidence.test, shape, shown(Path(test.resolve().name)))}"


def _default_of(calibrated: Calibrated, notes: list[str]) -> Default | None:
    """`accept_all` for a classifier that answers every image alike: no threshold tells its images apart."""
    if np.ptp(softmax(calibrated.in_distribution["logits"]), axis=0).max() > SAME_ANSWER:
        return None
    notes.append("every calibration image gets the same answer: no gate can choose among them, accept_all is default")
    return Default(policy="accept_all")
