"""The user's own folders, through the commands that read them: what is found, what is told, what is refused."""

import os
import shutil
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from service.model.bundle import Input, load_bundle
from service.model.images import decode
from tests.conftest import make_bundle
from training.cli.main import main
from training.data.files import find_images
from training.data.ood import load_ood

SIDE = 12
LABELS = ("red", "green", "blue")
HEIC = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)


@pytest.fixture
def confgate_train(monkeypatch, capsys):
    """The command in this process: starting one for each call would take longer than the tests."""

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["confgate-train", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        assert (ended.value.code or 0) == code, told.out + told.err
        return told.out if code == 0 else told.err

    return run


def picture(label, seed, size=(20, 17)):
    """A noisy image whose class is its brightest channel; some are hard to tell."""
    random = np.random.default_rng([label, seed])
    colour = random.normal(120, 25, 3)
    colour[label] += 45
    return Image.fromarray((colour + random.normal(0, 20, (*size, 3))).clip(0, 255).astype(np.uint8))


def write_photos(folder, names=LABELS, each=60, seed=0):
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            picture(label, seed + number).save(folder / name / f"{number}.png")
    return folder


def write_flat(folder, count, seed=500):
    """Dark images of no class."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(count):
        Image.fromarray(random.integers(0, 60, (15, 22, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An ONNX classifier: the mean of each channel, which is its class."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["mean"], "pool"),
        helper.make_node("Flatten", ["mean"], ["features"], "flatten"),
        helper.make_node("Gemm", ["features", "weight"], ["logits"], "gemm"),
    ]
    weight = numpy_helper.from_array(np.float32(4 * np.eye(3) - 1), "weight")
    graph = helper.make_graph(
        nodes,
        "mean",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 3])],
        [weight],
    )
    path = tmp_path_factory.mktemp("model") / "mean.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("own") / "photos")


def importing(model, calibration, out, *options, labels="red,green,blue"):
    return ("import-onnx", model, "--labels", labels, "--calibration", calibration, "--out", out, *options)


def clutter(folder):
    """What lies in a folder of photos beside the photos; returns how many images there are."""
    write_flat(folder / "monday" / "morning", 30)
    first, second, third = sorted((folder / "monday" / "morning").iterdir())[:3]
    first.rename(folder / "no suffix")
    second.rename(folder / "line\nbreak [red].jpeg")  # a PNG by its content
    third.rename(folder / os.fsdecode(b"caf\xe9.png"))  # no UTF-8
    for junk in ("Thumbs.db", ".DS_Store", "desktop.ini", "LICENSE", "labels.txt"):
        (folder / "monday" / junk).write_bytes(b"\xd0\xcf\x11\xe0 BM not an image")
    (folder / "__MACOSX").mkdir()
    shutil.copy(folder / "no suffix", folder / "__MACOSX" / "._a.png")
    shutil.copy(folder / "no suffix", folder / ".hidden.png")
    (folder / "empty.jpg").touch()
    (folder / "page.jpg").write_text("<html>not found</html>")
    (folder / "BMW.txt").write_text("BM is how bitmaps begin, and this is a text of more than 32 bytes")
    (folder / "monday" / "back").symlink_to(folder, target_is_directory=True)
    return 30


def test_images_are_found_by_content_wherever_they_are(tmp_path, confgate_train):
    """Sub-folders, odd names and wrong suffixes count; leftovers, texts and links in a circle do not."""
    bundle = make_bundle(tmp_path / "models").folder
    images = clutter(tmp_path / "traffic")
    text = confgate_train("calibrate", bundle, "--traffic", tmp_path / "traffic", "--target-rejection", 0.5)
    assert f"  {images}  " in next(line for line in text.splitlines() if "target_rejection" in line)
    assert "2 files under" in text
    assert "end like images but hold none" in text


def test_one_error_names_every_file_that_cannot_be_used(tmp_path, model, photos, confgate_train):
    """Damaged files, HEIC, RAW and links to nothing are all in one message: ten of them, and how many more."""
    spoilt = shutil.copytree(photos, tmp_path / "spoilt")
    (spoilt / "blue" / "0.HEIC").write_bytes(HEIC)
    (spoilt / "blue" / "0.nef").write_bytes(b"II*\0" + bytes(60))
    (spoilt / "green" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    for path in (*sorted((spoilt / "blue").glob("1*.png"))[:6], *(spoilt / "red").glob("2?.png")):
        path.write_bytes(path.read_bytes()[:-60])
    told = confgate_train(*importing(model, spoilt, tmp_path / "models" / "m" / "1"), code=2)
    assert "19 of 183 files cannot be used: " in told
    assert "0.HEIC: is a HEIC image, which is not served; convert it to JPEG or PNG" in told
    assert "0.nef: is a RAW image" in told
    assert "gone.jpg: is a link to a file that does not exist" in told
    assert "; and 9 more. Repair or remove them." in told


def test_labels_may_lack_images(tmp_path, model, photos, confgate_train):
    """Of many labels without images their number is told, not their names; sub-folders may be called like an index."""
    few = tmp_path / "few"
    shutil.copytree(photos / "red", few / "0")
    shutil.copytree(photos / "blue", few / "blue" / "2026")
    out = tmp_path / "models" / "m" / "1"
    text = confgate_train(*importing(model, few, out))
    assert "note: 1 of 3 labels have no image in " in text
    assert "green" not in text[: text.index("# m version 1")]
    assert load_bundle(out).manifest.pairs.policies["balanced"].n == 120
    ids = tmp_path / "labels.txt"
    ids.write_text("n01440764 tench, Tinca tinca\nn01443537 goldfish\nn01484850 great white shark\n")
    (few / "0").rename(few / "n01440764")
    (few / "blue").rename(few / "n01484850 great white shark")
    text = confgate_train(*importing(model, few, tmp_path / "models" / "m" / "2", labels=ids))
    assert "note: 1 of 3 labels" in text


def test_unlabelled_images_calibrate_refusal_rates(tmp_path, model, photos, confgate_train):
    """Without labels the bundle has the policies that need none; notes say what is missing and how to label."""
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in photos.rglob("*.png"):
        shutil.copy(path, flat / f"{path.parent.name}{path.name}")
    out = tmp_path / "models" / "m" / "1"
    text = confgate_train(*importing(model, flat, out, "--ood", write_flat(tmp_path / "night", 40)))
    assert "is unlabelled, because it has no sub-folders" in text
    assert "put images into sub-folders called like the labels, such as" in text
    assert "left out policy 'risk': only labels tell which images are misclassified" in text.replace("\n", " ")
    manifest = load_bundle(out).manifest
    assert manifest.temperature == 1
    assert {"balanced", "foreign_only", "ood_holdout"} <= set(manifest.pairs.policies)
    assert "risk" not in manifest.pairs.policies
    assert all({"tpr95", "ood_holdout"} == set(score.policies) for score in manifest.scores.values())
    assert manifest.pairs.policies["balanced"].expected.total.rate <= 0.1
    table = confgate_train("calibrate", out, "--data", flat)
    assert "accuracy of accepted" in table
    assert all(line.endswith("–") for line in table.splitlines() if line.startswith(("balanced", "foreign_only")))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: (p / "red").rename(p / "rde"), "has 1 sub-folders that are no label: 'rde' (did you mean 'red'?)"),
        (lambda p: shutil.copy(p / "red" / "0.png", p / "x.png"), "1 images in no label's sub-folder: x.png"),
        (lambda p: shutil.copy(p / "red" / "0.png", p / "blue" / "x.png"), "is in another label's sub-folder too"),
        (lambda p: [shutil.rmtree(p / name) for name in ("red", "green")], None),
        (lambda p: [f.unlink() for f in p.rglob("*.png") if int(f.stem) >= 16], "holds 48 images, too few to set"),
    ],
)
def test_what_is_wrong_with_a_calibration_folder_is_told(tmp_path, model, photos, confgate_train, spoil, message):
    """A folder that is no label, an image without one, contradictions, and too few images; one label alone will do."""
    folder = shutil.copytree(photos, tmp_path / "photos")
    spoil(folder)
    arguments = importing(model, folder, tmp_path / "models" / "m" / "1")
    if message is None:
        assert "2 of 3 labels have no image" in confgate_train(*arguments)
    else:
        assert message in confgate_train(*arguments, code=2)


def test_splits_are_not_taken_for_classes(tmp_path, model, photos, confgate_train):
    """A folder of train/, val/ and test/ is not unlabelled: the message says which one to give."""
    for split in ("train", "val", "test"):
        shutil.copytree(photos, tmp_path / "all" / split)
    told = confgate_train(*importing(model, tmp_path / "all", tmp_path / "models" / "m" / "1"), code=2)
    assert "holds the splits test, train, val and no labels" in told


def test_images_given_twice_are_refused(tmp_path, model, photos, confgate_train):
    """A calibration image among test or OOD images is named, also if it was renamed or saved again without loss."""
    out = tmp_path / "models" / "m" / "1"
    test = write_photos(tmp_path / "test", each=10, seed=1_000)
    Image.open(photos / "red" / "3.png").save(test / "red" / "copy.webp", lossless=True)
    told = confgate_train(*importing(model, photos, out, "--test", test), code=2)
    assert "1 of 31 images are calibration images" in told
    assert "copy.webp" in told
    (test / "red" / "copy.webp").unlink()
    night = write_flat(tmp_path / "night", 30)
    shutil.copy(photos / "red" / "3.png", night / "other name.png")
    shutil.copy(test / "blue" / "3.png", night / "another.png")
    told = confgate_train(*importing(model, photos, out, "--test", test, "--ood", night), code=2)
    assert "--ood night: 1 of " in told
    (night / "other name.png").unlink()
    (night / "another.png").unlink()
    text = confgate_train(*importing(model, photos, out, "--test", test, "--ood", night))
    assert "| OOD: night | 15 |" in text


def test_a_folder_of_ood_images_is_divided_by_content_and_decoded_as_served(tmp_path):
    """Names, places and copies change nothing; every image is in one half, as the service would decode it."""
    night = write_flat(tmp_path / "night", 41)
    shutil.copy(night / "7.png", night / "copy of 7.png")
    Image.open(night / "8.png").save(night / "8.webp", lossless=True)
    rule = Input(width=10, height=8, resize="fit_crop", interpolation="bilinear", crop_fraction=0.9)
    ood = load_ood(str(night), tmp_path, rule)
    assert (len(ood.calibration), len(ood.test)) == (20, 21)
    expected = [decode(path.read_bytes(), rule, 10**6) for path in ood.test.paths]
    assert np.array_equal(ood.test[:], expected)
    assert not set(ood.test.hashes.tolist()) & set(ood.calibration.hashes.tolist())
    moved = tmp_path / "moved" / "below"
    for number, path in enumerate(sorted(night.iterdir(), reverse=True)):
        if "copy" not in path.name and path.suffix == ".png":
            moved.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, moved / f"renamed-{number}.png")
    again = load_ood(str(tmp_path / "moved"), tmp_path, rule)
    assert again.calibration.hashes.tolist() == ood.calibration.hashes.tolist()


def test_a_folder_that_cannot_be_ood_images_is_told(tmp_path, model, photos, confgate_train):
    """Fewer than 20 different images, a folder that is not there, and two of one name."""
    out = tmp_path / "models" / "m" / "1"
    few = write_flat(tmp_path / "few", 19)
    shutil.copy(few / "1.png", few / "copy.png")
    assert "has 19 different images" in confgate_train(*importing(model, photos, out, "--ood", few), code=2)
    missing = tmp_path / "missing"
    assert "missing is not a folder" in confgate_train(*importing(model, photos, out, "--ood", missing), code=2)
    twice = ("--ood", write_flat(tmp_path / "a" / "night", 20), "--ood", write_flat(tmp_path / "b" / "night", 20))
    assert "--ood gives night more than once" in confgate_train(*importing(model, photos, out, *twice), code=2)


def test_a_folder_that_may_not_be_read_is_named(tmp_path, model, photos, confgate_train):
    """A folder without permission is an error, because its images would silently be missing."""
    folder = shutil.copytree(photos, tmp_path / "photos")
    (folder / "red").chmod(0)
    try:
        if os.access(folder / "red", os.R_OK):
            pytest.skip("this user may read every folder")
        told = confgate_train(*importing(model, folder, tmp_path / "models" / "m" / "1"), code=2)
        assert "red cannot be read (Permission denied)" in told
    finally:
        (folder / "red").chmod(0o755)


def test_kinds_that_are_not_served_are_told_by_their_content(tmp_path):
    """A photo names its kind first or among those it is compatible with; a film is no image, and a TIFF is served."""
    for name, content in (
        ("heic.jpg", HEIC),
        ("avif", b"\0\0\0\x1cftypavif" + bytes(20)),
        ("raw.cr3", b"\0\0\0\x18ftypcrx \0\0\0\1crx isom"),
        ("xl.jxl", b"\0\0\0\x0cJXL \r\n\x87\n"),
        ("film.mp4", b"\0\0\0\x1cftypisom\0\0\0\0mp42" + bytes(8)),
    ):
        (tmp_path / name).write_bytes(content)
    Image.new("RGB", (4, 4)).save(tmp_path / "scan.tif")
    kinds = {file.path.name: (file.problem or "is a served").split()[2] for file in find_images(tmp_path).files}
    assert kinds == {"heic.jpg": "HEIC", "avif": "AVIF", "raw.cr3": "RAW", "xl.jxl": "JPEG", "scan.tif": "served"}


def test_a_split_folder_is_called_like_the_set_it_belongs_to(tmp_path, model, photos, confgate_train):
    """photos/val is calibrated under the name of photos: "val test" would be no name for its test images."""
    shutil.copytree(photos, tmp_path / "phones" / "val")
    test = write_photos(tmp_path / "phones" / "test", each=10, seed=1_000)
    out = tmp_path / "models" / "m" / "1"
    text = confgate_train(*importing(model, tmp_path / "phones" / "val", out, "--test", test))
    assert "phones test images" in text
