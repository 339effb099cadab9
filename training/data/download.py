"""Downloads the sets that torchvision knows, and stores them as NAME.npz (`confgate-train data download`)."""

import tempfile
from http.client import HTTPException
from pathlib import Path

from training.data.catalogue import CATALOGUE
from training.data.importers.named_sets import import_data_set
from training.errors import DataError


def download(name: str, root: Path) -> Path:
    """Downloads the published files with torchvision, which verifies their checksums, and converts them."""
    known = CATALOGUE.get(name)
    downloadable = [other for other, entry in CATALOGUE.items() if entry.torchvision]
    if known is None or known.torchvision is None:
        how = f" To get '{name}': {known.how_to_get}." if known else ""
        raise DataError(f"'{name}' cannot be downloaded. Expected one of: {', '.join(downloadable)}.{how}")
    import training.torchvision_shim  # noqa: F401  (makes the next import work beside a CPU-only torch)
    from torchvision import datasets  # isort: skip

    kind = getattr(datasets, known.torchvision)
    with tempfile.TemporaryDirectory() as folder:
        try:
            if name == "svhn":
                for part in ("train", "test"):
                    kind(folder, split=part, download=True)
            else:
                kind(folder, download=True)
        except (OSError, RuntimeError, HTTPException) as problem:  # URLError and a failed checksum are among them
            raise DataError(
                f"'{name}' could not be downloaded ({problem}). Is there a connection to the internet? Without one, "
                f"get the files another way, then: confgate-train data import {name} FOLDER."
            ) from problem
        return import_data_set(name, Path(folder), root)
