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
MODELS = ("cifar10", "fashion_mnist")


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


def figure(client: httpx.Client, name: str, metric: str, data: str, policy: str | None = None) -> float:
    """A figure of the evaluation of a model's default version, as /v1/models tells it."""
    model = client.get(f"/v1/models/{name}").json()
    version = next(v for v in model["versions"] if v["version"] == model["default_version"])
    wanted = (metric, data, None if policy is None else "confidence", policy)
    return next(
        f["value"] for f in version["evaluation"] if (f["metric"], f["data"], f.get("score"), f.get("policy")) == wanted
    )


def bounds(share: float, n: int) -> tuple[float, float]:
    """Four standard errors of a share measured on n images: chance leaves them once in 15,000 draws."""
    margin = 4 * np.sqrt(max(share * (1 - share), 0.01) / n)
    return share - margin, share + margin


@pytest.mark.parametrize("model", MODELS)
def test_accuracy_is_what_the_card_says(client, model):
    """200 real test images of its own kind are classified as well as the card says, within four standard errors."""
    labels = json.loads((FIXTURES / "labels.json").read_text())[model]
    answers = predictions(client, tiles(model), model=model)
    accuracy = np.mean([a["class_id"] == label for a, label in zip(answers, labels, strict=True)])
    low, high = bounds(figure(client, model, "accuracy", f"{model} test"), len(labels))
    assert low <= accuracy <= high


@pytest.mark.parametrize("policy", ["misclassified", "tpr95"])
@pytest.mark.parametrize("sheet", MODELS)
@pytest.mark.parametrize("model", MODELS)
def test_rejection_is_what_the_card_says(client, model, sheet, policy):
    """Under each policy the refused share of its own and of the other images is the card's, within the same bounds."""
    answers = predictions(client, tiles(sheet), model=model, policy=policy)
    refused = np.mean([not a["in_distribution"] for a in answers])
    data = f"{sheet} test" if sheet == model else sheet
    low, high = bounds(figure(client, model, "rejection_rate", data, policy), len(answers))
    assert low <= refused <= high


@pytest.mark.parametrize("model", MODELS)
def test_what_is_accepted_is_more_accurate(client, model):
    """On its own images the answers that pass the gate are right more often than all answers are."""
    labels = json.loads((FIXTURES / "labels.json").read_text())[model]
    answers = predictions(client, tiles(model), model=model)
    right = np.array([a["class_id"] == label for a, label in zip(answers, labels, strict=True)])
    kept = np.array([a["in_distribution"] for a in answers])
    assert right[kept].mean() > right.mean()


def test_cifar10_answers_when_no_model_is_named(client):
    """The README's curl, which names no model, is answered by cifar10."""
    image = (ROOT / "examples" / "cat.png").read_bytes()
    answer = client.post("/v1/predict", content=image, headers={"Content-Type": "image/png"}).json()
    assert (answer["model"], answer["predictions"][0]["label"]) == ("cifar10", "cat")


@pytest.mark.parametrize(
    "bundle", sorted((ROOT / "models").glob("*/*/bundle.json")), ids=lambda p: f"{p.parts[-3]}-{p.parts[-2]}"
)
def test_every_shipped_bundle_has_its_card_and_fits(bundle):
    """Each bundle in the repository has a card with its accuracy, and its folder is at most 12 MB."""
    folder = bundle.parent
    accuracy = next(f for f in json.loads(bundle.read_text())["evaluation"] if f["metric"] == "accuracy")
    assert f"{accuracy['value']:.2%}" in (folder / "CARD.md").read_text()
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 12_000_000
