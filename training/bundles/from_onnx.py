"""`confgate-train import-onnx`: any ONNX image classifier becomes a bundle."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.errors import RequestError
from service.model.bundle import Bundle, Default, Input, Provenance
from service.model.images import Pixels, decode
from service.model.scores import softmax
from training.bundles.bank import with_bank
from training.bundles.card import write_card
from training.bundles.write import Graphs, assemble_bundle, check_new
from training.calibration.calibrate import Calibrated, Evidence, calibrate_graphs
from training.data.splits import LabelledImages
from training.errors import DataError
from training.graphs.foreign.classifier import Reading, read_classifier
from training.graphs.foreign.odin import odin_graph

MAX_PIXELS = 200_000_000  # the user's own files; the service has a lower limit for files of strangers

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
    resize: Input | None = None,
) -> Imported:
    """Reads the graph, finds its logits, calibrates on a folder of labelled images, and writes the bundle."""
    check_new(target)
    notes: list[str] = []
    classifier = read_classifier(model, len(labels), reading, notes)
    height, width = classifier.height, classifier.width
    rule = resize or Input(width=width, height=height, resize="stretch", interpolation="bilinear")
    shape = rule.model_copy(update={"width": width, "height": height})
    evidence = Evidence(
        calibration.name,
        read_image_folder(calibration, labels, shape),
        None if test is None else read_image_folder(test, labels, shape),
    )
    banked = with_bank(classifier.forward, shape, evidence)
    forward, evidence = banked.forward, banked.evidence
    if banked.note is not None:
        notes.append(banked.note)
    perturbed = odin_graph(forward, evidence.calibration.images[:1], notes)
    provenance = Provenance(
        git_sha="not trained here",
        recipe=f"import-onnx {model.name}",
        seed=None,
        data=f"calibrated on {len(evidence.calibration)} images of {calibration.name}",
    )
    graphs = Graphs(forward, perturbed)
    opened = graphs.opened(shape)
    calibrated = calibrate_graphs(opened, evidence)
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
            evidence.name,
            f"An ONNX classifier imported from `{model.name}`.",
            f"`confgate-train import-onnx {model.name} --out models/{manifest.name}/{manifest.version}`, "
            f"{manifest.provenance.data}; {reading.described()}.",
            made.epsilon_how,
        ),
    )
    return Imported(bundle, notes, calibrated.warning)


def _default_of(calibrated: Calibrated, notes: list[str]) -> Default | None:
    """`accept_all` for a classifier that answers every image alike: no threshold tells its images apart."""
    if np.ptp(softmax(calibrated.in_distribution["logits"]), axis=0).max() > SAME_ANSWER:
        return None
    notes.append("every calibration image gets the same answer: no gate can choose among them, accept_all is default")
    return Default(policy="accept_all")


def read_image_folder(folder: Path, labels: tuple[str, ...], shape: Input) -> LabelledImages:
    """FOLDER/LABEL/*.{png,jpg,…}, decoded and resized by the code that serves."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Expected one sub-folder of images for each label.")
    missing = [label for label in labels if not (folder / label).is_dir()]
    if missing:
        raise DataError(f"{folder} has no sub-folder for {', '.join(missing)}. Expected one for each label.")
    images, classes = [], []
    for class_id, label in enumerate(labels):
        for path in sorted(p for p in (folder / label).iterdir() if p.is_file() and not p.name.startswith(".")):
            images.append(decode_file(path, shape))
            classes.append(class_id)
    if not images:
        raise DataError(f"{folder} holds no images.")
    return LabelledImages(np.stack(images), np.asarray(classes, np.int64))


def decode_file(path: Path, shape: Input) -> Pixels:
    """One image file, decoded and resized by the code that serves."""
    try:
        return decode(path.read_bytes(), shape, MAX_PIXELS)
    except RequestError as problem:
        raise DataError(f"{path} cannot be read: {problem.detail}. Repair or remove it.") from problem
