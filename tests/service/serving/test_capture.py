"""Refused images that are kept: which, how, how many, and that nothing else is."""

import io
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from service.errors import SettingsError
from service.model.gate import Reading
from service.serving import capture
from service.serving.capture import Capture
from service.serving.metrics import Metrics
from service.settings import Settings
from tests.conftest import BLUE, GREY, RED, make_bundle, solid
from tests.pair_bundles import DARK, make_pair_bundle
from tests.service.conftest import HeldService
from tests.service.serving.reloading import change, is_told
from tests.service.serving.test_load import wait_for

PNG = {"Content-Type": "image/png"}
KEPT = {"capture_rate": 1.0}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def keeping(models: Path, kept: Path, request: pytest.FixtureRequest) -> Iterator[HeldService]:
    """A service that keeps every refused image."""
    make_bundle(models)
    service = HeldService(models, capture_dir=kept, **KEPT, **getattr(request, "param", {}))
    yield service
    service.stop()


def send(service: HeldService, image: bytes, **query: Any) -> None:
    response = service.client.post("/v1/predict", content=image, headers=PNG, params=query)
    assert response.status_code == 200, response.text


def counted(service: HeldService, name: str, **labels: str) -> float:
    return service.app.state.metrics.registry.get_sample_value(f"confgate_{name}", labels) or 0.0


def wait_until_kept(service: HeldService, images: int) -> None:
    wait_for(lambda: service.metric("confgate_captured_images_total") == images)


def grey(level: int, size: tuple[int, int] = (8, 8)) -> bytes:
    return solid((level, level, level), size)


def test_a_refused_image_is_kept_with_its_answer(keeping: HeldService, kept: Path) -> None:
    """Picture and answer of a refused image are in the folder; those of accepted and broken ones are not."""
    headers = {**PNG, "X-Request-Id": "keep-1"}
    answer = keeping.client.post("/v1/predict", content=GREY, headers=headers).json()["predictions"][0]
    send(keeping, RED)
    assert keeping.client.post("/v1/predict", content=b"text", headers=PNG).status_code == 422
    wait_until_kept(keeping, 1)
    keeping.stop()
    record_file, picture = sorted(path for path in kept.rglob("*") if path.is_file())
    assert record_file.parent == kept / "colours" / "1"
    record = json.loads(record_file.read_text())
    assert record["image"] == picture.name
    assert record["request_id"] == "keep-1"
    shown = ("label", "probabilities", "score", "score_value", "policy", "threshold")
    for field in (*shown, "reason", "typicality", "certainty", "certainty_threshold"):
        assert record[field] == answer[field]
    with Image.open(picture) as image:
        assert (image.size, image.mode, image.getpixel((0, 0))) == ((8, 8), "RGB", (128, 128, 128))


def test_a_record_says_why_a_pair_refused_the_image(models: Path, kept: Path) -> None:
    """Under a pair the record has the reason, both scores and both thresholds, as they were answered."""
    make_pair_bundle(models)
    service = HeldService(models, capture_dir=kept, **KEPT)
    answers = {}
    for image in (RED, GREY, DARK):
        answer = service.client.post("/v1/predict", content=image, headers=PNG).json()["predictions"][0]
        answers[answer["reason"]] = answer
    wait_until_kept(service, 2)
    service.stop()
    records = {record["reason"]: record for record in map(json.loads, (f.read_text() for f in kept.rglob("*.json")))}
    assert set(records) == {"unsure", "unfamiliar"}
    fields = ("score", "score_value", "threshold", "typicality", "certainty", "certainty_threshold", "policy")
    for reason, record in records.items():
        assert {field: record[field] for field in fields} == {field: answers[reason][field] for field in fields}


def test_only_the_picture_is_kept(keeping: HeldService, kept: Path) -> None:
    """A photo with EXIF, a place and a comment is kept upright, shrunk, and without any of them."""
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90°
    exif[0x010F] = "secret camera"
    exif.get_ifd(0x8825)[1] = "N"
    file = io.BytesIO()
    photo = Image.linear_gradient("L").resize((600, 400)).convert("RGB")
    photo.save(file, "JPEG", exif=exif, comment=b"secret words", icc_profile=b"x" * 200)
    send(keeping, file.getvalue(), policy="tpr95")
    wait_until_kept(keeping, 1)
    (picture,) = kept.rglob("*.png")
    content = picture.read_bytes()
    chunks, position = [], 8
    while position < len(content):
        chunks.append(content[position + 4 : position + 8])
        position += 12 + int.from_bytes(content[position : position + 4], "big")
    assert set(chunks) == {b"IHDR", b"IDAT", b"IEND"}
    with Image.open(picture) as image:
        assert image.size == (171, 256)
    assert picture.stat().st_mode & 0o077 == 0
    assert (kept / "colours").stat().st_mode & 0o077 == 0


def test_a_picture_is_kept_once(keeping: HeldService, kept: Path) -> None:
    """A picture that is sent again and again, in whatever format, does not push the others out."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (128, 128, 128)).save(file, "WEBP", lossless=True)
    for image in (GREY, GREY, file.getvalue()):
        send(keeping, image)
    wait_for(lambda: counted(keeping, "capture_dropped_total", reason="duplicate") == 2)
    assert len(list(kept.rglob("*.png"))) == 1


@pytest.mark.parametrize("keeping", [{"capture_max_images": 3}], indirect=True)
def test_the_oldest_make_room(keeping: HeldService, kept: Path) -> None:
    """With as many as are allowed, each new image removes the oldest, picture and record."""
    for level in range(100, 106):
        send(keeping, grey(level))
        wait_until_kept(keeping, level - 99)
    wait_for(lambda: counted(keeping, "capture_images") == 3)
    levels = []
    for picture in kept.rglob("*.png"):
        with Image.open(picture) as image:
            levels.append(image.getpixel((0, 0))[0])  # type: ignore[index]
    assert sorted(levels) == [103, 104, 105]
    assert len(list(kept.rglob("*.json"))) == 3
    assert counted(keeping, "capture_bytes") == sum(path.stat().st_size for path in kept.rglob("*.*"))


def test_nothing_is_kept_by_default(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a folder no image is written anywhere, whatever the other settings say."""
    make_bundle(models)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    service = HeldService(models, **KEPT)
    send(service, GREY)
    assert service.metric("confgate_predictions_total", decision="rejected") == 1
    service.stop()
    assert sorted(tmp_path.rglob("*")) == before
    assert service.metric("confgate_captured_images_total") == 0


def test_images_are_kept_by_lot(models: Path, kept: Path) -> None:
    """Of 200 different refused images about the given share is kept, and never all or none."""
    make_bundle(models)
    service = HeldService(models, capture_dir=kept, capture_rate=0.3)
    for level in range(200):
        send(service, grey(level))
    service.stop()
    dropped = counted(service, "capture_dropped_total", reason="queue_full")
    # 0.3 of 200 is 60; seven standard deviations of 6.5 either side.
    assert 15 <= service.metric("confgate_captured_images_total") + dropped <= 105


def test_a_full_queue_drops_and_never_waits(keeping: HeldService, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk hangs, requests are answered as ever; what does not fit the queue is counted as dropped."""
    disk_works = threading.Event()
    real = capture.shrink

    def hang(*arguments: Any) -> Any:
        assert disk_works.wait(60)
        return real(*arguments)

    monkeypatch.setattr(capture, "shrink", hang)
    monkeypatch.setattr(capture, "MAX_WAITING_BYTES", 10 * len(grey(0)))
    for level in range(30):
        send(keeping, grey(level))
    dropped = counted(keeping, "capture_dropped_total", reason="queue_full")
    disk_works.set()
    assert dropped >= 15
    wait_until_kept(keeping, 30 - int(dropped))


def test_a_broken_disk_costs_captures_and_nothing_else(
    keeping: HeldService, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where writing fails requests are answered, failures are counted and logged once, and it goes on afterwards."""
    kept.mkdir(exist_ok=True)
    (kept / "colours").write_text("a file where a folder must be")
    for level in (1, 2, 3):
        send(keeping, grey(level))
    wait_for(lambda: counted(keeping, "capture_dropped_total", reason="error") == 3)
    assert len([record for record in caplog.records if "could not be kept" in record.message]) == 1
    (kept / "colours").unlink()
    send(keeping, grey(4))
    wait_until_kept(keeping, 1)


def test_an_unforeseen_error_does_not_end_the_thread(
    keeping: HeldService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody expected is counted as a drop and logged with its traceback, and the next image is kept."""
    with monkeypatch.context() as patch:
        patch.setattr(capture, "as_png", lambda _: 1 // 0)
        send(keeping, grey(1))
        wait_for(lambda: counted(keeping, "capture_dropped_total", reason="error") == 1)
    (record,) = [record for record in caplog.records if "could not be kept" in record.message]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    send(keeping, grey(2))
    wait_until_kept(keeping, 1)


def test_a_waiting_image_keeps_nothing_else_in_memory(held_service: HeldService, kept: Path) -> None:
    """Of a request with many images as pixels, only the refused one stays in memory until it is written."""
    model = held_service.model
    waiting = Capture(Settings(capture_dir=kept, **KEPT), Metrics())  # not started: it stays in the queue
    whole = np.zeros((100, 8, 8, 3), np.uint8)
    body, image = weakref.ref(whole), whole[3]
    del whole
    reading = Reading(0, [1.0, 0.0, 0.0], {"confidence": (-1.0, 0.25)})
    waiting.offer(model, model.default_gate, image, model.default_gate.decide(reading), "")
    del image
    assert body() is None


def test_an_image_that_is_kept_late_does_not_bring_its_version_back(
    keeping: HeldService, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image of a version that was unloaded meanwhile is kept, and the version's series stay removed."""
    disk_works, real = threading.Event(), capture.as_png

    def hang(pixels: Any) -> bytes:
        assert disk_works.wait(60)
        return real(pixels)

    monkeypatch.setattr(capture, "as_png", hang)
    send(keeping, GREY)
    assert change(keeping, "unload").status_code == 200
    wait_for(lambda: not is_told(keeping, "1"))
    disk_works.set()
    wait_for(lambda: counted(keeping, "capture_images") == 1)
    keeping.stop()  # waits for the thread
    assert len(list(kept.rglob("*.png"))) == 1
    assert (
        keeping.app.state.metrics.registry.get_sample_value(
            "confgate_captured_images_total", {"model": "colours", "version": "1"}
        )
        is None
    )


def test_a_restart_goes_on_where_it_was(models: Path, kept: Path) -> None:
    """Pairs of an earlier process count; halves of a killed one are removed, old ones expire, other files stay."""
    make_bundle(models)
    first = HeldService(models, capture_dir=kept, **KEPT)
    for level in (1, 2, 3):
        send(first, grey(level))
    wait_until_kept(first, 3)
    first.stop()
    folder = kept / "colours" / "1"
    pictures = sorted(folder.glob("*.png"))
    long_ago = time.time() - 40 * 86_400
    os.utime(pictures[0].with_suffix(".json"), (long_ago, long_ago))
    pictures[1].with_suffix(".json").unlink()
    (folder / f".{'0' * 32}.png.part").write_bytes(b"half")
    for name in ("notes.txt", "holiday.png", f"{'f' * 31}.png"):
        (folder / name).write_bytes(b"somebody's own")
    second = HeldService(models, capture_dir=kept, **KEPT)
    wait_for(lambda: counted(second, "capture_images") == 1)
    send(second, pictures[2].read_bytes())  # kept already
    send(second, BLUE)
    send(second, grey(9))
    wait_until_kept(second, 1)
    second.stop()
    assert len(list(folder.glob("*.json"))) == 2
    assert {"notes.txt", "holiday.png", f"{'f' * 31}.png"} <= {path.name for path in folder.iterdir()}
    assert not pictures[0].exists()
    assert not list(folder.glob("*.part"))
    assert len(list(folder.iterdir())) == 4 + 3


def test_a_folder_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    """Somebody who asks for captures and cannot have them is told at the start, not by an empty folder."""
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"capture_dir: .*file' is not allowed"):
        Capture(Settings(capture_dir=tmp_path / "file"), Metrics())
