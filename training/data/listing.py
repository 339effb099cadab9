"""The image sets under a data root, read from the headers of their files only."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

from numpy.lib import format as npy

from training.data.catalogue import ALL_IMAGES, CATALOGUE
from training.errors import DataError


@dataclass(frozen=True)
class Listed:
    """One line of `confgate-train data list`."""

    name: str
    present: bool
    images: str
    size: str
    what: str
    note: str  # how to get a missing set, or what a combination is made of


def list_sets(root: Path) -> list[Listed]:
    """Every known set, then every other .npz file of images."""
    others = sorted(path.stem for path in root.glob("*.npz") if not path.name.startswith("."))
    return [_listed(name, root) for name in [*CATALOGUE, *(name for name in others if name not in CATALOGUE)]]


def _listed(name: str, root: Path) -> Listed:
    known = CATALOGUE.get(name)
    what = known.what if known else "your own"
    if known and known.made_here == "noise":
        return Listed(name, True, "10,000", "any", what, known.how_to_get)
    if name == "all_images":
        return _combination(name, root, what)
    path = root / f"{name}.npz"
    if not path.is_file():
        return Listed(name, False, "", "", what, known.how_to_get if known else "")
    shapes = image_shapes(path)
    counts = [f"{shape[0]:,} {key[2:]}".strip() for key, shape in sorted(shapes.items(), reverse=True)]
    sizes = sorted({f"{shape[2]}×{shape[1]}" for shape in shapes.values()})
    return Listed(name, True, " / ".join(counts), ", ".join(sizes), what, "")


def _combination(name: str, root: Path, what: str) -> Listed:
    parts = present_parts(root)
    missing = [wanted for wanted, present in parts.items() if present is None]
    if missing:
        return Listed(name, False, "", "", what, f"needs {', '.join(missing)}")
    used = [present for present in parts.values() if present is not None]
    count = sum(count_images(root / f"{part}.npz") for part in used)
    return Listed(name, True, f"{count:,}", "", what, f"made of {', '.join(used)}")


def present_parts(root: Path) -> dict[str, str | None]:
    """For each part of "All Images" the set that is present: the paper's own, else its stand-in, else None."""
    parts: dict[str, str | None] = {}
    for wanted, substitute in ALL_IMAGES:
        candidates = [name for name in (wanted, substitute) if name and (root / f"{name}.npz").is_file()]
        parts[wanted] = candidates[0] if candidates else None
    return parts


def count_images(path: Path) -> int:
    """How many images a set gives as out-of-distribution: its test part, or all of a set of one part."""
    shapes = image_shapes(path)
    return next((shapes[key][0] for key in ("x_test", "x") if key in shapes), 0)


def image_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the image arrays of an .npz, without reading a pixel."""
    shapes = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.startswith("x") and member.endswith(".npy"):
                    with archive.open(member) as file:
                        version = npy.read_magic(file)
                        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                        shapes[member.removesuffix(".npy")] = read(file)[0]
    except (OSError, ValueError, zipfile.BadZipFile) as problem:
        raise DataError(f"{path} is not a readable .npz file ({problem}). Import the data set again.") from problem
    return {key: shape for key, shape in shapes.items() if len(shape) == 4}
