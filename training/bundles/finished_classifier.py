"""A classifier that is finished, from a bundle, a run or an ONNX file: its graph, and the images around it.

What learns is told apart from what calibrates: no image is in both. Where no calibration images are given, and none are
on record, a fifth of the images to learn from is held out for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from service.model.bundle import Bundle, Input, Provenance, load_bundle
from service.model.command_line import CommandLine
from training.bundles.evidence import CALIBRATED_ON, check_ood, read_evidence
from training.bundles.held_out import divided
from training.bundles.learned_branch import LearningImages
from training.bundles.made_by import chain, recipe_of_run, resolved
from training.bundles.recorded_images import RecordedImages, described_images, is_imported, recorded_images
from training.bundles.write import git_revision
from training.calibration.calibrate import Evidence
from training.data.class_folders import title_of_folder
from training.data.files import shown
from training.data.labelled_folder import folder_name, read_calibration, read_test
from training.data.ood import load_oods
from training.data.seen import TRAINED_ON, Hashes, hashes_in, hashes_of, refuse_seen
from training.data.splits import LabelledImages
from training.errors import DataError
from training.graphs.branch import has_branch, without_branch
from training.graphs.foreign.classifier import Reading, read_classifier
from training.graphs.from_torch import export_network
from training.graphs.parity import check_parity
from training.graphs.weights import load_without_large_weights
from training.learning.finished_run import read_run

LEARNT_FROM = "images that the branch learns from (--data)"
TESTED_ON = "test images"


@dataclass(frozen=True)
class Given:
    """Which classifier, which images, and of an ONNX file how it is read."""

    model: Path
    command: CommandLine
    data: Path | None = None
    calibration: Path | None = None
    test: Path | None = None
    ood: Sequence[str] = ()
    data_root: Path = Path("data")
    trained_on: bool | None = None  # --data; None: found out by hash
    labels: tuple[str, ...] | None = None
    reading: Reading = field(default_factory=Reading)
    resize: Input | None = None


@dataclass(frozen=True)
class FinishedClassifier:
    """A classifier without a branch, the images around it, and where it comes from."""

    forward: onnx.ModelProto
    shape: Input
    labels: tuple[str, ...]
    evidence: Evidence
    learning: LearningImages
    provenance: Provenance
    what: str  # for the card
    known: Hashes  # of images that it was trained on, as far as they are known
    notes: tuple[str, ...] = ()


def finished_classifier(given: Given, weights: Path) -> FinishedClassifier:
    """`weights` is a folder where large weights lie meanwhile."""
    if (given.model / "bundle.json").is_file():
        return _of_bundle(load_bundle(given.model), given)
    if (given.model / "run.json").is_file():
        return _of_run(given)
    if given.model.is_file():
        return _of_file(given, weights)
    raise DataError(
        f"{given.model} is no ONNX file, and holds neither a run.json nor a bundle.json. Expected a bundle "
        f"(models/NAME/VERSION), a run (the --out of 'confgate-train fit') or an ONNX file."
    )


def _of_bundle(bundle: Bundle, given: Given) -> FinishedClassifier:
    manifest, known = bundle.manifest, hashes_in(bundle)
    _refuse_reading(given, "a bundle says itself how it is read")
    forward = load_without_large_weights(bundle.graph_path("forward"))
    if has_branch(forward):
        forward = without_branch(forward)
    old, data = manifest.provenance, manifest.provenance.data
    base = data.split("; ")[0]
    if is_imported(manifest) or given.calibration is not None:
        record = recorded_images(manifest) if is_imported(manifest) else None
        images = _of_folders(given, manifest.labels, manifest.input, known, record)
        data = f"{base}; a branch added to version {manifest.version}, {images.described(manifest.input)}"
    else:
        evidence = read_evidence(bundle, None, given.data_root, list(given.ood))
        images = _of_training(given, evidence, manifest.labels, manifest.input, known)
        data = base
    provenance = old.model_copy(update={"data": data, "commands": chain(old.commands, given.command)})
    return FinishedClassifier(
        forward,
        manifest.input,
        manifest.labels,
        images.evidence,
        images.learning,
        provenance,
        f"The classifier of {manifest.name}, version {manifest.version} (`{old.recipe}`).",
        known,
        images.notes,
    )


def _of_run(given: Given) -> FinishedClassifier:
    _refuse_reading(given, "a run says itself how it is read")
    moved = given.data if _has_moved(given) else None
    run = read_run(given.model, given.data_root, moved)
    splits = run.splits
    run.network.branch = None
    forward = export_network(run.network, run.mean, run.std, run.image_size)
    check_parity(forward, run.network, run.mean, run.std, splits.calibration.images[:32])
    known = hashes_of(splits.train.images, splits.input)
    evidence = Evidence(
        run.recipe.data.dataset,
        splits.calibration,
        splits.test,
        load_oods(given.ood, given.data_root, splits.input),
        splits.train,
    )
    check_ood(evidence, splits.input)
    given = given if moved is None else replace(given, data=None)
    images = _of_training(given, evidence, splits.label_names, splits.input, known)
    return FinishedClassifier(
        forward,
        splits.input,
        splits.label_names,
        images.evidence,
        images.learning,
        Provenance(
            git_sha=git_revision(),
            recipe=run.recipe.name,
            seed=run.seed,
            data=f"{run.recipe.data.dataset}, splits {splits.sizes}, fingerprint {splits.fingerprint}",
            commands=chain(run.made_by, given.command),
            resolved_recipe=resolved(run.recipe),
        ),
        f"Network `{run.recipe.network.name}`, trained on {run.recipe.data.dataset}.",
        known,
        images.notes,
    )


def _has_moved(given: Given) -> bool:
    """Whether a run's folder of images is no longer where it was: then --data is where it is now."""
    folder = recipe_of_run(given.model).data.folder
    return given.data is not None and folder is not None and not Path(folder).is_dir()


def _of_file(given: Given, weights: Path) -> FinishedClassifier:
    if given.labels is None:
        raise DataError(f"{given.model} is an ONNX file, which does not name its classes. Give --labels.")
    notes: list[str] = []
    classifier = read_classifier(given.model, len(given.labels), given.reading, weights, notes)
    rule = given.resize or Input(width=1, height=1, resize="stretch", interpolation="bilinear")
    shape = rule.model_copy(update={"width": classifier.width, "height": classifier.height})
    images = _of_folders(given, given.labels, shape, np.zeros(0, np.uint64))
    return FinishedClassifier(
        classifier.forward,
        shape,
        given.labels,
        images.evidence,
        images.learning,
        Provenance(
            git_sha="not trained here",
            recipe=f"import-onnx {given.model.name}",
            seed=None,
            data=images.described(shape),
            commands=(given.command,),
            resolved_recipe={
                "labels": list(given.labels),
                **given.reading.resolved(classifier.layout),
                **shape.model_dump(mode="json"),
            },
        ),
        f"An ONNX classifier read from `{given.model.name}`.",
        np.zeros(0, np.uint64),
        (*notes, *images.notes),
    )


@dataclass(frozen=True)
class _Images:
    learning: LearningImages
    evidence: Evidence
    notes: tuple[str, ...] = ()
    held_out: bool = False  # the calibration images are a part of --data

    def described(self, shape: Input) -> str:
        """As `recorded_images` reads it."""
        evidence = self.evidence
        said = f"calibrated on {described_images(evidence.calibration, shape, evidence.name, self.held_out)}"
        if evidence.test is None:
            return said
        return f"{said}, tested on {described_images(evidence.test, shape, evidence.tested)}"


def _of_training(given: Given, evidence: Evidence, labels: tuple[str, ...], shape: Input, known: Hashes) -> _Images:
    """The calibration images are those of the training; --data may take the place of what it learnt from."""
    if given.test is not None or given.calibration is not None:
        raise DataError(
            "--calibration and --test are for models from elsewhere: this one has calibration and test images of its "
            "training. Leave them out."
        )
    if given.data is None:
        if evidence.train is None:
            raise DataError("--data is missing: the training images of this model are not known.")
        return _Images(LearningImages(evidence.train, True), evidence)
    learning, notes = _read_data(given, labels, shape)
    own = {CALIBRATED_ON: hashes_of(evidence.calibration.images, shape)}
    if evidence.test is not None:
        own[TESTED_ON] = hashes_of(evidence.test.images, shape)
    refuse_seen(f"--data {shown(given.data)}", learning.images, shape, own)
    return _Images(LearningImages(learning, _trained_on(given, learning, shape, known)), evidence, notes)


def _of_folders(
    given: Given, labels: tuple[str, ...], shape: Input, known: Hashes, recorded: RecordedImages | None = None
) -> _Images:
    """Images from --data and --calibration, or from --data alone, which is then divided."""
    learning, notes = _read_data(given, labels, shape)
    folder = given.calibration or _on_record(recorded, learning, labels, shape)
    if folder is not None:
        read = read_calibration(folder, labels, shape, "--calibration")
        other = {LEARNT_FROM: hashes_of(learning.images, shape), TRAINED_ON: known}
        refuse_seen(f"--calibration {shown(folder)}", read.images.images, shape, other)
        calibration, title, notes = read.images, title_of_folder(folder), notes + read.notes
    else:
        assert given.data is not None  # _read_data refuses its absence
        learning, calibration = divided(learning, given.data)
        title = title_of_folder(given.data)
        held_out = f"{len(calibration):,} images of {shown(given.data)} are held out to calibrate on"
        notes += (f"{held_out}; --calibration gives others",)
    learnt_from = hashes_of(learning.images, shape)
    tested, of_test = _read_test(
        given, recorded, labels, shape, {LEARNT_FROM: learnt_from, CALIBRATED_ON: hashes_of(calibration.images, shape)}
    )
    test_name = None if tested is None else tested[1]
    evidence = Evidence(
        title,
        calibration,
        None if tested is None else tested[0],
        load_oods(given.ood, given.data_root, shape),
        notes=notes + of_test,
        test_name=test_name,
    )
    check_ood(evidence, shape, np.union1d(known, learnt_from))
    return _Images(
        LearningImages(learning, _trained_on(given, learning, shape, known)), evidence, held_out=folder is None
    )


def _on_record(
    recorded: RecordedImages | None, learning: LabelledImages, labels: tuple[str, ...], shape: Input
) -> Path | None:
    """The folder that an imported bundle was calibrated on, if it is there and teaches the branch nothing."""
    if recorded is None or recorded.calibration is None or recorded.held_out:
        return None
    folder = Path(recorded.calibration)
    if not folder.is_dir():
        return None
    theirs = read_calibration(folder, labels, shape, "--calibration").images.images
    return None if np.isin(hashes_of(theirs, shape), hashes_of(learning.images, shape)).any() else folder


def _read_data(given: Given, labels: tuple[str, ...], shape: Input) -> tuple[LabelledImages, tuple[str, ...]]:
    if given.data is None:
        raise DataError(
            f"--data is missing. Give --data: labelled images for {given.model} to learn doubt from, in one sub-folder "
            f"for each label, such as {folder_name(labels[0])}."
        )
    read = read_calibration(given.data, labels, shape, "--data")
    if not isinstance(read.images, LabelledImages):
        raise DataError(
            f"--data {shown(given.data)} is not labelled, and doubt is learnt from mistakes. Expected one "
            f"sub-folder of images for each label, such as {shown(given.data)}/{folder_name(labels[0])}."
        )
    return read.images, read.notes


def _read_test(
    given: Given,
    recorded: RecordedImages | None,
    labels: tuple[str, ...],
    shape: Input,
    known: Mapping[str, Hashes],
) -> tuple[tuple[LabelledImages, str] | None, tuple[str, ...]]:
    """Test images and their name: those of --test, or those that the model was imported with."""
    folder = given.test
    if folder is None and recorded is not None and recorded.test is not None and Path(recorded.test).is_dir():
        folder = Path(recorded.test)
    if folder is None:
        return None, ()
    read = read_test(folder, labels, shape, "--test")
    refuse_seen(f"--test {shown(folder)}", read.images.images, shape, known)
    assert isinstance(read.images, LabelledImages)  # read_test refuses others
    return (read.images, title_of_folder(folder)), read.notes


def _trained_on(given: Given, learning: LabelledImages, shape: Input, known: Hashes) -> bool | None:
    """What the user says, or else what the hashes of the training images say."""
    if given.trained_on is not None:
        return given.trained_on
    return bool(np.isin(hashes_of(learning.images, shape), known).any()) if len(known) else None


def _refuse_reading(given: Given, why: str) -> None:
    if given.labels is not None:
        raise DataError(f"--labels is for an ONNX file: {why}. Leave it out.")
