"""What lies under the models folder: MODELS/NAME/VERSION. Hidden folders are bundles still being written."""

import os
from pathlib import Path

from service.errors import BundleError, SettingsError
from service.model.manifest import MANIFEST

DEFAULT_MODEL = "default_model"  # a file in the models folder: the name of the model that answers when none is named

# Of every file: its path in the folder, size, modification time and inode, which a rename changes.
Fingerprint = tuple[tuple[str, int, int, int], ...]


def find_bundles(models: Path) -> list[Path]:
    """Every MODELS/NAME/VERSION, versions in rising order."""
    if not models.is_dir():
        raise SettingsError(f"models: '{models}' is not allowed: there is no such folder")
    folders = [folder for name in find_names(models) for folder in find_versions(name)]
    if not folders:
        raise SettingsError(f"models: '{models}' is not allowed: it holds no NAME/VERSION with a bundle.json")
    return folders


def named_default(models: Path) -> str | None:
    """What the models folder's own `default_model` file says; None where there is no such file."""
    file = models / DEFAULT_MODEL
    try:
        name = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read ({error}): expected a text file with a model's name") from error
    if not name:
        raise SettingsError(f"{file} is empty: write the name of a model into it, or delete it")
    return name


def find_names(models: Path) -> list[Path]:
    """Every MODELS/NAME that holds at least one folder."""
    names = sorted(entry for entry in models.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return [name for name in names if any(_folders(name))]


def find_versions(name: Path) -> list[Path]:
    """Every version of one model, in rising order."""
    versions = _folders(name) if name.is_dir() else []
    for version in versions:
        if not (version.name.isascii() and version.name.isdecimal()):
            raise BundleError(version, "version", repr(version.name), "a folder named by a whole number")
    return sorted(versions, key=lambda folder: int(folder.name))


def fingerprint(folder: Path) -> Fingerprint:
    """Changes whenever a file in the folder does, without reading any."""
    found = []
    for where, below, files in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            path = Path(where, name)
            try:
                status = path.stat()
            except FileNotFoundError:  # deleted meanwhile: the next poll sees it
                continue
            found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(sorted(found))


def is_unfinished(name: Path) -> bool:
    """Whether a version of a model has no bundle.json yet, as while it is being copied."""
    return any(not (version / MANIFEST).is_file() for version in _folders(name))


def _folders(name: Path) -> list[Path]:
    return [entry for entry in name.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
