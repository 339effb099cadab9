"""The paper's tables as data: complete, and consistent with one another and with what the metrics mean."""

import pytest

from training.metrics.detection import METRICS
from training.paper.published import DETECTION_TABLES, citation, published_errors, published_rows, published_value
from training.recipe import available

PHOTOS = ["tinyimagenet_crop", "tinyimagenet_resize", "lsun_crop", "lsun_resize", "isun"]
ALL_SETS = [*PHOTOS, "uniform", "gaussian", "all_images"]
PART_OF_THEM = ["tinyimagenet_resize", "lsun_resize", "isun", "all_images"]
ON_SVHN, ON_CIFAR10 = ["densenet-bc", "wrn-16-8", "vgg13"], ["densenet-bc", "wrn-28-10", "vgg13"]
PAIR, PREPROCESSED_PAIR = ["baseline", "confidence"], ["odin", "confidence_preprocessed"]
EXPECTED = {
    "1": ({"svhn": ON_SVHN, "cifar10": ON_CIFAR10}, PART_OF_THEM, PAIR),
    "2": ({"svhn": ON_SVHN, "cifar10": ON_CIFAR10}, ["all_images"], PREPROCESSED_PAIR),
    "3": ({"cifar10": ON_CIFAR10}, ["all_images"], PAIR),
    "4": ({"svhn": ON_SVHN}, ALL_SETS, PAIR),
    "5": ({"cifar10": ON_CIFAR10}, ALL_SETS, PAIR),
}


@pytest.mark.parametrize("table", EXPECTED)
def test_every_cell_of_a_table_is_there_once(table):
    """Each network, in-distribution set, out-of-distribution set and method the paper shows has exactly one row."""
    networks, outside, methods = EXPECTED[table]
    expected = [(n, i, o, m) for i, names in networks.items() for n in names for o in outside for m in methods]
    found = [(r.network, r.in_distribution, r.out_of_distribution, r.method) for r in published_rows(table)]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("table", DETECTION_TABLES)
def test_values_can_be_what_they_say(table):
    """Per cents; and at the threshold that keeps 95 % the detection error is ½·(5 + FPR), so its minimum is no more."""
    for row in published_rows(table):
        assert list(row.values) == list(METRICS)
        assert all(0 <= value <= 100 for value in row.values.values())
        # Each published value is rounded to 0.1.
        assert row.values["detection_error"] <= (5 + row.values["fpr_at_95_tpr"]) / 2 + 0.1


def test_the_summary_table_repeats_the_appendix():
    """Every row of Table 1 is also in Table 4 (SVHN) or 5 (CIFAR-10), with the same five values."""
    appendix = [*published_rows("4"), *published_rows("5")]
    assert all(row in appendix for row in published_rows("1"))


def test_the_threshold_table_repeats_the_detection_error():
    """Table 3's first column is the detection error of Table 5 on All Images, as its caption says."""
    for row in published_rows("3"):
        same = (row.network, "cifar10", "all_images", row.method)
        assert row.values["calibrated_on_ood"] == published_value(*same, "detection_error")
        # The least detection error over all thresholds cannot be beaten by a threshold from elsewhere.
        assert row.values["calibrated_on_misclassified"] >= row.values["calibrated_on_ood"]


def test_every_published_network_has_a_recipe_and_a_classification_error():
    """What the tables show can be trained here, with and without the branch."""
    cells = {(row.network, row.in_distribution) for row in published_rows("1")}
    assert {(n, i, m) for n, i in cells for m in PAIR} == set(published_errors())
    for network, inside in cells:
        assert {f"{network}-{inside}", f"{network}-{inside}-baseline"} <= set(available())


def test_single_values_by_hand():
    """Values read off the paper's pages: Table 2 and Table 5 for VGG13, and one that is not there."""
    assert published_value("vgg13", "cifar10", "all_images", "confidence_preprocessed", "auroc") == 98.0
    assert published_value("vgg13", "cifar10", "gaussian", "confidence", "fpr_at_95_tpr") == 84.1
    assert published_value("vgg13", "svhn", "all_images", "odin", "aupr_in") == 96.8
    assert published_value("vgg13", "cifar10", "mnist", "confidence", "auroc") is None
    assert "arXiv:1802.04865" in citation()
