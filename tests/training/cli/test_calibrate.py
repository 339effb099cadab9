"""`confgate-train calibrate` as it is typed, on a tiny real bundle: tables that can be recounted, and new versions."""

import re
import shlex
import sys

import numpy as np
import pytest
from PIL import Image

from service.model.bundle import load_bundle
from tests.conftest import LABELS, SIDE, make_bundle
from tests.training.command_line import REPOSITORY
from training.bundles.next_version import opened_bundle
from training.cli.main import main
from training.metrics.detection import auroc


def photographs(count, seed):
    """Noise whose class is, on the whole, its brightest channel; one in ten or so is hard to tell."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    colours = random.normal(120, 25, (count, 3))
    colours[np.arange(count), labels] += 45
    pixels = colours[:, None, None, :] + random.normal(0, 10, (count, SIDE, SIDE, 3))
    return pixels.clip(0, 255).astype(np.uint8), labels


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """models/colours/1 without the newer scores, labelled photos, unlabelled traffic, and an OOD set."""
    folder = tmp_path_factory.mktemp("calibrate")
    make_bundle(folder / "models")
    images, labels = photographs(900, 0)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / "photos" / LABELS[label] / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    (folder / "traffic" / "monday").mkdir(parents=True)
    for index, image in enumerate(photographs(200, 1)[0]):
        Image.fromarray(image).save(folder / "traffic" / "monday" / f"{index}.png")
    dark = np.random.default_rng(2).integers(0, 40, (1_100, SIDE, SIDE, 3), dtype=np.uint8)
    (folder / "data").mkdir()
    np.savez(folder / "data" / "night.npz", x=dark)
    return folder


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


def table(text):
    """Rows of the printed table by (score, policy)."""
    heading, *lines = text.splitlines()
    names = re.split(r"  +", heading)
    rows = [re.split(r"  +", line) for line in lines]
    return {(row[0], row[1]): dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)}


def _line(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_a_bundle_gets_a_new_version_without_training(place, confgate_train):
    """Graphs keep their hashes; every score and policy is there; what the table says can be counted again."""
    old, new = place / "models" / "colours" / "1", place / "models" / "colours" / "2"
    common = ("--data", place / "photos", "--ood", "night", "--data-root", place / "data")
    text = confgate_train("calibrate", old, *common, "--tpr", 90, "--risk", 0.1, "--out", new)
    before, after = load_bundle(old).manifest, load_bundle(new).manifest
    assert after.graphs == before.graphs
    assert set(after.scores) == {
        *("confidence", "max_softmax", "energy", "max_logit", "typicality", "certainty", "confidence_preprocessed"),
    }
    for score in after.scores.values():
        assert {"misclassified", "ood_holdout", "tpr90"} <= set(score.policies)
    assert "risk" in after.scores["confidence"].policies
    assert (after.schema_version, after.default.score, after.default.policy) == (2, None, "balanced")
    assert set(after.pairs.policies) == {"balanced", "risk", "foreign_only", "ood_holdout", "accept_all"}
    assert "note: no neighbours: " in text
    assert "thresholds made anew from version 1" in after.provenance.data
    card = (new / "CARD.md").read_text()
    assert "Version 1 under new thresholds" in card
    assert "ε has the least detection error between calibration images and held-out images of night" in card
    assert (
        f"\nconfgate-train calibrate {old} --data {place / 'photos'} --ood night --tpr 90 --risk 0.1 --out {new}"
        in card
    )
    first, next_step = text[text.index("# colours version 2") :].split(f"wrote {new}; the whole card is ")
    assert card.startswith(first)  # and no more of it is printed
    assert first.count("\n") <= 15
    assert f"\nnext: confgate serve --models {place / 'models'}\n" in next_step
    assert f"\nnext: confgate-train report {new} --ood " in next_step
    pairs, singles, *_ = text.split("\n\n")
    rows = table(singles)
    images, labels = photographs(900, 0)
    outputs = opened_bundle(load_bundle(new)).run(images, after.scores["confidence_preprocessed"].epsilon)
    scored = {name: score.of_images(name, outputs) for name, score in after.scores.items()}
    right = outputs["logits"].argmax(axis=1) == labels
    for name, values in scored.items():
        kept = values > after.scores[name].policies["ood_holdout"].threshold
        row = rows[name, "ood_holdout"]
        if name != "typicality":  # there, a calibration image is compared with the others, and not with itself
            assert row["refused"] == f"{1 - kept.mean():.2%}"
        assert row["accuracy of accepted"] == f"{right[kept].mean():.2%}"
        assert row["caught: night"].endswith("%")
    # Dark images have small logits: energy sees them at once.
    assert float(rows["energy", "ood_holdout"]["caught: night"].rstrip("%")) > 99
    recommended = re.search(r"to catch OOD images, use (\w+): .* AUROC, 900 against 550", text)
    areas = {name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)%[,.]", _line(text, "to catch OOD"))}
    assert recommended is not None
    assert areas[recommended[1]] == max(areas.values())
    expected = auroc(scored["confidence"][right], scored["confidence"][~right])
    assert f"confidence {expected:.2%}" in text
    chosen = after.pairs.policies["balanced"]
    familiarity, certainty = (-np.inf if one is None else one for one in (chosen.familiarity, chosen.certainty))
    unfamiliar = scored["typicality"] <= familiarity
    unsure = ~unfamiliar & (scored["certainty"] <= certainty)
    row = next(line for line in pairs.splitlines() if line.startswith("balanced"))
    assert f"{right[~(unfamiliar | unsure)].mean():.2%}" in row
    assert chosen.expected.total.interval[0] < (unfamiliar | unsure).mean() < chosen.expected.total.interval[1]


def test_a_promise_that_cannot_be_made_is_a_note(place, confgate_train):
    """Too few images for --risk leave out that policy, for pairs and for single scores; the tables still come."""
    text = confgate_train("calibrate", place / "models" / "colours" / "1", "--data", place / "photos", "--risk", 0.001)
    assert "cannot promise at most 0.10% wrong answers" in text
    assert "can promise at most 0.10% wrong answers" in text
    assert "default: familiarity and certainty under policy balanced" in text


def test_the_recommended_score_becomes_the_default_when_asked(place, confgate_train):
    """--use-recommended ood makes the score that separates best the default, under ood_holdout."""
    new = place / "models" / "colours" / "3"
    common = ("--data", place / "photos", "--ood", "night", "--data-root", place / "data")
    text = confgate_train(
        "calibrate", place / "models" / "colours" / "1", *common, "--use-recommended", "ood", "--out", new
    )
    default = load_bundle(new).manifest.default
    assert default.policy == "ood_holdout"
    assert default.score != "confidence"
    assert f"to catch OOD images, use {default.score}:" in text
    assert f"default: score {default.score} under policy ood_holdout" in text


def test_unlabelled_traffic_is_enough(place, confgate_train):
    """A tenth of the given traffic is refused by the new default; the old policies and figures stand as they were."""
    old, new = place / "models" / "colours" / "1", place / "models" / "colours" / "4"
    confgate_train("calibrate", old, "--traffic", place / "traffic", "--target-rejection", 0.1, "--out", new)
    before, after = load_bundle(old).manifest, load_bundle(new).manifest
    assert after.graphs == before.graphs
    assert after.evaluation == before.evaluation
    assert (after.default.score, after.default.policy) == ("confidence", "target_rejection")
    epsilon = after.scores["confidence_preprocessed"].epsilon
    outputs = opened_bundle(load_bundle(new)).run(photographs(200, 1)[0], epsilon)
    values = after.scores["confidence"].of_images("confidence", outputs)
    policy = after.scores["confidence"].policies["target_rejection"]
    assert np.mean(values <= policy.threshold) == policy.expected_rejection_rate == pytest.approx(0.1)
    for name, score in before.scores.items():
        assert score.policies.items() <= after.scores[name].policies.items()
    assert "policy target_rejection from 200 unlabelled images" in (new / "CARD.md").read_text()


def test_without_out_nothing_is_written(place, confgate_train):
    """The table alone leaves the models folder as it is, and says how to write."""
    before = sorted((place / "models").rglob("*"))
    text = confgate_train("calibrate", place / "models" / "colours" / "1", "--data", place / "photos")
    assert "nothing was written" in text
    assert sorted((place / "models").rglob("*")) == before


def test_mistakes_are_told_in_one_sentence(place, confgate_train):
    """What does not fit together is refused with what to do, and nothing is written."""
    bundle = place / "models" / "colours" / "1"
    photos = ("--data", place / "photos")
    for arguments, message in (
        ((place,), "neither a run.json nor a bundle.json"),
        ((bundle, "--traffic", place / "traffic"), "belong together"),
        ((bundle, "--traffic", place / "data", "--target-rejection", 0.1), "holds no images"),
        ((bundle,), "does not say which named set it was trained on"),
        ((bundle, *photos, "--use-recommended", "ood"), "Name a set with --ood"),
        ((bundle, *photos, "--epsilon-by", "ood"), "Name a set with --ood"),
        ((bundle, *photos, "--risk", 1.5), "--risk is 1.5, expected a share between 0 and 1"),
        ((bundle, *photos, "--out", place / "models" / "other" / "1"), "keeps its model's name"),
        ((bundle, *photos, "--out", bundle), "never edited"),
    ):
        assert message in confgate_train("calibrate", *arguments, code=2)
    assert not (place / "models" / "other").exists()


def test_the_first_example_of_the_help_works_when_pasted(monkeypatch, confgate_train):
    """From a clone, with no data at hand, the first line that --help shows runs."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("COLUMNS", "200")  # as wide as a terminal that does not cut the line
    example = re.search(
        r"confgate-train (calibrate .*? --target-rejection [\d.]+)", confgate_train("calibrate", "--help")
    )
    assert example is not None
    assert "target_rejection" in confgate_train(*shlex.split(example[1]))
