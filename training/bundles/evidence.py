"""The images that a bundle is calibrated on: a folder, a named set, or the set its network was trained on."""

import re
from pathlib import Path

from service.model.bundle import Bundle, Input, Manifest
from training.bundles.made_by import recipe_of
from training.calibration.calibrate import Evidence, Traffic
from training.data.class_folders import title_of_folder
from training.data.labelled_folder import read_calibration, read_test, read_unlabelled
from training.data.ood import load_oods, refuse_seen_ood
from training.data.seen import TRAINED_ON, Hashes, hashes_in, hashes_of, refuse_seen
from training.data.splits import LabelledImages, Splits, splits_for
from training.errors import DataError
from training.recipe import Data

RECORDED = re.compile(r"^(?P<name>.+?), splits \{(?P<sizes>[^}]*)\}, fingerprint (?P<fingerprint>[0-9a-f]+)")
CALIBRATED_ON = "calibration images"


def read_evidence(bundle: Bundle, data: str | None, data_root: Path, ood: list[str]) -> Evidence:
    """Calibration images the network has not seen, and OOD images that are neither of them."""
    manifest = bundle.manifest
    ood_images = load_oods(ood, data_root, manifest.input)
    trained = hashes_in(bundle)
    if data is not None and Path(data).is_dir():
        read = read_calibration(Path(data), manifest.labels, manifest.input, "--data")
        refuse_seen(f"--data {data}", read.images.images, manifest.input, {TRAINED_ON: trained})
        evidence = Evidence(title_of_folder(Path(data)), read.images, None, ood_images, notes=read.notes)
        check_ood(evidence, manifest.input, trained)
        return evidence
    splits, name, is_own = _splits(manifest, data, data_root)
    if splits.label_names != manifest.labels:
        raise DataError(
            f"data set '{name}' has the classes {', '.join(splits.label_names[:5])} …, and {manifest.name} knows "
            f"{', '.join(manifest.labels[:5])} …. Give --data images of its own classes."
        )
    if not is_own:
        refuse_seen(f"--data {name}", splits.calibration.images, manifest.input, {TRAINED_ON: trained})
    evidence = Evidence(name, splits.calibration, splits.test, ood_images, splits.train)
    check_ood(evidence, manifest.input, trained)
    return evidence


def imported_evidence(
    calibration: Path, test: Path | None, labels: tuple[str, ...], shape: Input, ood: list[str], data_root: Path
) -> Evidence:
    """Of a model from elsewhere: what --calibration, --test and --ood give, which must be different images."""
    own = read_calibration(calibration, labels, shape, "--calibration")
    notes = own.notes
    tested: LabelledImages | None = None
    if test is not None:
        read = read_test(test, labels, shape, "--test")
        known = {CALIBRATED_ON: hashes_of(own.images.images, shape)}
        refuse_seen(f"--test {test}", read.images.images, shape, known)
        assert isinstance(read.images, LabelledImages)  # read_test refuses others
        tested, notes = read.images, notes + read.notes
    ood_images = load_oods(ood, data_root, shape)
    test_name = None if test is None else title_of_folder(test)
    evidence = Evidence(title_of_folder(calibration), own.images, tested, ood_images, notes=notes, test_name=test_name)
    check_ood(evidence, shape)
    return evidence


def check_ood(evidence: Evidence, shape: Input, trained: Hashes | None = None) -> None:
    """Fails if an OOD image is one of the model's own images: it would set thresholds against itself."""
    if not evidence.ood:
        return
    known = {CALIBRATED_ON: hashes_of(evidence.calibration.images, shape)}
    if evidence.test is not None:
        known["test images"] = hashes_of(evidence.test.images, shape)
    if evidence.train is not None:
        known[TRAINED_ON] = hashes_of(evidence.train.images, shape)
    elif trained is not None:
        known[TRAINED_ON] = trained
    refuse_seen_ood(evidence.ood, shape, known)


def read_traffic(folder: Path, bundle: Bundle | None, shape: Input, rate: float) -> Traffic:
    """Every image file under a folder, decoded as it is served; no labels are needed."""
    images, notes = read_unlabelled(folder, shape, "--traffic")
    if bundle is not None:
        refuse_seen(f"--traffic {folder}", images, shape, {TRAINED_ON: hashes_in(bundle)})
    return Traffic(images, rate, tuple(notes))


def _splits(manifest: Manifest, data: str | None, data_root: Path) -> tuple[Splits, str, bool]:
    """The splits, the name of their set, and whether the network was trained on that set."""
    trained = RECORDED.match(manifest.provenance.data)
    if trained is None or (data is not None and data != trained["name"]):
        if data is None:
            raise DataError(
                f"{manifest.name} {manifest.version} does not say which named set it was trained on. Give --data: a "
                f"folder with one sub-folder of images for each label, or a set's name."
            )
        if "/" in data or "\\" in data:
            raise DataError(f"--data {data} is not a folder. Expected one of images, or the name of a set.")
        return splits_for(Data(dataset=data), data_root), data, False
    name, recorded = trained["name"], trained["fingerprint"]
    sizes = {key: int(count) for key, count in re.findall(r"'(\w+)': (\d+)", trained["sizes"])}
    recipe = recipe_of(manifest)
    earlier = Data(dataset=name, validation=sizes["validation"], calibration=sizes["calibration"])
    wanted = earlier if recipe is None else recipe.data  # bundles hold their recipe since version 0.2
    try:
        splits = splits_for(wanted, data_root, recorded=recorded)
    except DataError as problem:
        raise DataError(
            f"{problem} If the model was trained on a folder of photos, calibrate its run with --data FOLDER, or give "
            f"--data images that it has not seen."
        ) from problem
    if splits.fingerprint != recorded:
        raise DataError(
            f"the splits of '{name}' under {data_root} have fingerprint {splits.fingerprint}, the model was trained "
            f"with {recorded}: calibration images might have been trained on. Calibrate the run itself, "
            f"or give --data a folder of images that the model has not seen."
        )
    return splits, name, True
