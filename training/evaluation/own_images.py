"""A bundle's own images that are not the splits of its training: from --calibration and --test, or from its record."""

from dataclasses import dataclass
from pathlib import Path

from service.model.bundle import Bundle
from training.bundles.held_out import divided
from training.bundles.recorded_images import RecordedImages, is_imported, recorded_images
from training.data.class_folders import title_of_folder
from training.data.files import shown
from training.data.labelled_folder import read_calibration, read_for_model
from training.data.seen import fingerprint_of
from training.data.splits import LabelledImages, Splits, UnlabelledImages, splits_for
from training.errors import DataError
from training.recipe import Data

OwnImages = LabelledImages | UnlabelledImages
WITHOUT_LABELS = "accuracy, AUGRC and whatever else depends on mistakes are left out"


@dataclass(frozen=True)
class GivenFolders:
    """Folders in place of the images that a bundle's record names."""

    calibration: Path | None = None
    test: Path | None = None


@dataclass(frozen=True)
class OwnPart:
    """Calibration or test images, where they come from, and what their user should know about them."""

    images: OwnImages
    name: str  # of the set or folder
    where: str  # for messages
    notes: tuple[str, ...] = ()
    is_named_set: bool = False


def own_calibration(bundle: Bundle, given: GivenFolders, data_root: Path) -> OwnPart | None:
    """None: the calibration split of its training."""
    record = recorded_images(bundle.manifest)
    if given.calibration is not None:
        return _calibration(bundle, given.calibration, record, by_hand=True)
    if record.calibration is None:
        if not is_imported(bundle.manifest):
            return None
        raise DataError(
            f"{bundle.folder} was imported, and does not say which images it was calibrated on. Give them with "
            f"--calibration DIR."
        )
    if _is_set_of_training(bundle, record.calibration):
        return None
    folder = Path(record.calibration)
    if folder.is_dir():
        return _calibration(bundle, folder, record, by_hand=False)
    if _is_set(record.calibration, data_root):
        return _of_set(bundle, record.calibration, data_root, "calibration")
    raise DataError(
        f"{bundle.folder} was calibrated on {shown(folder)}, which is no folder here, nor a set under {data_root}. "
        f"Give --calibration DIR: where these images are now."
    )


def own_test(bundle: Bundle, given: GivenFolders, data_root: Path) -> OwnPart | None:
    """None: the test split of its training."""
    manifest, record = bundle.manifest, recorded_images(bundle.manifest)
    if given.test is not None:
        return _test(bundle, given.test, "--test")
    if record.test is not None:
        if Path(record.test).is_dir():
            return _test(bundle, Path(record.test), f"the --test of {bundle.folder},")
        raise DataError(
            f"{bundle.folder} was tested on {shown(Path(record.test))}, which is no folder here. Give --test DIR: "
            f"where these images are now, or others of its kind."
        )
    # A set was measured on its own test part when the bundle was calibrated on it.
    if record.calibration is not None and _is_set(record.calibration, data_root):
        return _of_set(bundle, record.calibration, data_root, "test")
    if not is_imported(manifest):
        return None
    raise DataError(
        f"{bundle.folder} was imported without --test, so it has no test images. Give --test DIR: images of its kind "
        f"that it was not calibrated on, in one sub-folder for each label; without labels only OOD figures are "
        f"measured."
    )


def _calibration(bundle: Bundle, folder: Path, record: RecordedImages, by_hand: bool) -> OwnPart:
    manifest = bundle.manifest
    flag = "--calibration" if by_hand else f"the calibration folder of {bundle.folder},"
    read = read_calibration(folder, manifest.labels, manifest.input, flag)
    images, notes = read.images, read.notes
    if record.held_out and not by_hand and isinstance(images, LabelledImages):
        _, images = divided(images, folder)
    if record.n_calibration is not None and len(images) != record.n_calibration:
        differ = (
            f"{bundle.folder} was calibrated on {record.n_calibration:,} images, and {shown(folder)} holds "
            f"{len(images):,}"
        )
        if not by_hand:
            raise DataError(f"{differ}. Give --calibration DIR with these images, or --calibration {shown(folder)}.")
        notes = (*notes, f"{differ}: thresholds were set on other images than these")
    elif record.fingerprint is not None and record.fingerprint != fingerprint_of(
        manifest.input, (images.images, images.labels)
    ):
        differ = f"{shown(folder)} holds other images, or labels, than those that {bundle.folder} was calibrated on"
        if not by_hand:
            raise DataError(f"{differ}. Give --calibration DIR with these images, or --calibration {shown(folder)}.")
        notes = (*notes, f"{differ}: thresholds were set on others")
    return OwnPart(images, title_of_folder(folder), f"{flag} {shown(folder)}", notes)


def _test(bundle: Bundle, folder: Path, flag: str) -> OwnPart:
    manifest = bundle.manifest
    read = read_for_model(folder, manifest.labels, manifest.input, flag, unlabelled=WITHOUT_LABELS)
    return OwnPart(read.images, title_of_folder(folder), f"{flag} {shown(folder)}", read.notes)


def _is_set(name: str, data_root: Path) -> bool:
    return "/" not in name and (data_root / f"{name}.npz").is_file()


def _is_set_of_training(bundle: Bundle, name: str) -> bool:
    return bundle.manifest.provenance.data.startswith(f"{name}, splits ")


def _of_set(bundle: Bundle, name: str, data_root: Path, part: str) -> OwnPart | None:
    """As `calibrate --data NAME` divides it; None for the set of the training, which its recipe divides."""
    if _is_set_of_training(bundle, name):
        return None
    splits: Splits = splits_for(Data(dataset=name), data_root)
    if splits.label_names != bundle.manifest.labels:
        raise DataError(
            f"{bundle.folder} was calibrated on '{name}', but the set of that name under {data_root} has other classes "
            f"({', '.join(splits.label_names[:5])} …). Point --data-root at the data it was calibrated on, or give "
            f"--calibration DIR and --test DIR."
        )
    images = splits.calibration if part == "calibration" else splits.test
    return OwnPart(images, name, f"the {part} images of '{name}'", is_named_set=True)
