"""The models in the repository, on real images over HTTP: they do what their cards say."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.conftest import Service

ROOT = Path(__file__).parents[1]
FIXTURES = Path(__file__).parent / "fixtures"
COLUMNS = 20


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """`confgate serve` over models/ as it ships."""
    running = Service(ROOT / "models").wait_until_serving()
    with httpx.Client(base_url=running.url, timeout=60) as session:
        yield session
    assert running.stop() == 0


def tiles(name: str) -> list[bytes]:
    """The images of a fixture sheet, each as a PNG."""
    sheet = Image.open(FIXTURES / f"{name}.png")
    side = sheet.width // COLUMNS
    files = []
    for top in range(0, sheet.height, side):
        for left in range(0, sheet.width, side):
            file = io.BytesIO()
            sheet.crop((left, top, left + side, top + side)).save(file, "PNG")
            files.append(file.getvalue())
    return files


def predictions(client: httpx.Client, images: list[bytes], **query: str) -> list[dict]:
    """Answers for all images, 20 a request."""
    answers = []
    for start in range(0, len(images), 20):
        files = [("files", (f"{i}.png", image, "image/png")) for i, image in enumerate(images[start : start + 20])]
        response = client.post("/v1/predict", files=files, params=query)
        assert response.status_code == 200, response.text
        answers += response.json()["predictions"]
    return answers


def figure(client: httpx.Client, metric: str, data: str, policy: str | None = None) -> float:
    """A figure of the default cifar10 version's evaluation, as /v1/models tells it."""
    model = client.get("/v1/models/cifar10").json()
    version = next(v for v in model["versions"] if v["version"] == model["default_version"])
    score = None if policy is None else "confidence"
    wanted = (metric, data, score, policy)
    return next(
        f["value"] for f in version["evaluation"] if (f["metric"], f["data"], f.get("score"), f.get("policy")) == wanted
    )


def bounds(share: float, n: int) -> tuple[float, float]:
    """Four standard errors of a share measured on n images: chance leaves them once in 15,000 draws."""
    margin = 4 * np.sqrt(max(share * (1 - share), 0.01) / n)
    return share - margin, share + margin


def test_accuracy_on_cifar10_is_what_the_card_says(client):
    """200 real CIFAR-10 test images are classified as accurately as the card says, within four standard errors."""
    labels = json.loads((FIXTURES / "labels.json").read_text())["cifar10"]
    answers = predictions(client, tiles("cifar10"), model="cifar10")
    accuracy = np.mean([a["class_id"] == label for a, label in zip(answers, labels, strict=True)])
    low, high = bounds(figure(client, "accuracy", "cifar10 test"), len(labels))
    assert low <= accuracy <= high


@pytest.mark.parametrize("policy", ["misclassified", "tpr95"])
@pytest.mark.parametrize(("sheet", "data"), [("cifar10", "cifar10 test"), ("fashion_mnist", "fashion_mnist")])
def test_rejection_is_what_the_card_says(client, policy, sheet, data):
    """Under each policy the share of refused images is the card's, within four standard errors."""
    answers = predictions(client, tiles(sheet), model="cifar10", policy=policy)
    refused = np.mean([not a["in_distribution"] for a in answers])
    low, high = bounds(figure(client, "rejection_rate", data, policy), len(answers))
    assert low <= refused <= high


def test_what_is_accepted_is_more_accurate(client):
    """On the CIFAR-10 sample the answers that pass the gate are right more often than all answers are."""
    labels = json.loads((FIXTURES / "labels.json").read_text())["cifar10"]
    answers = predictions(client, tiles("cifar10"), model="cifar10")
    right = np.array([a["class_id"] == label for a, label in zip(answers, labels, strict=True)])
    kept = np.array([a["in_distribution"] for a in answers])
    assert right[kept].mean() > right.mean()


@pytest.mark.parametrize("bundle", sorted((ROOT / "models").glob("*/*/bundle.json")), ids=lambda p: p.parent.name)
def test_every_shipped_bundle_has_its_card_and_fits(bundle):
    """Each bundle in the repository has a card with its accuracy, and its folder is at most 12 MB."""
    folder = bundle.parent
    accuracy = next(f for f in json.loads(bundle.read_text())["evaluation"] if f["metric"] == "accuracy")
    assert f"{accuracy['value']:.2%}" in (folder / "CARD.md").read_text()
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 12_000_000
