"""The models in the repository, on real images over HTTP: they do what their cards say."""

import io
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import onnxruntime
import pytest
from PIL import Image

from service.model.scores import sigmoid, softmax
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


def served_folder(model: str) -> Path:
    """The highest version, which answers requests that name none."""
    return max((ROOT / "models" / model).iterdir(), key=lambda folder: int(folder.name))


def runtime(model: str) -> onnxruntime.InferenceSession:
    """ONNX Runtime on a shipped graph, with nothing of the service around it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the service uses others: the answers must be the same
    path = served_folder(model) / "model.onnx"
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def direct_answers(model: str, images: list[bytes]) -> list[tuple[list[float], float]]:
    """Probabilities and confidence of each image, one at a time, in float64 from the graph's float32."""
    session = runtime(model)
    temperature = json.loads((served_folder(model) / "bundle.json").read_text())["temperature"]
    found = []
    for image in images:
        pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))[None]
        logits, z = session.run(["logits", "confidence_logit"], {"image": pixels})
        found.append((softmax(logits, temperature)[0].tolist(), float(sigmoid(z)[0])))
    return found


def figure(
    client: httpx.Client, name: str, metric: str, data: str, policy: str | None = None, score: str | None = None
) -> float:
    """A figure of the evaluation of a model's default version, as /v1/models tells it."""
    model = client.get(f"/v1/models/{name}").json()
    version = next(v for v in model["versions"] if v["version"] == model["default_version"])
    wanted = (metric, data, score, policy)
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
    answers = predictions(client, tiles(sheet), model=model, score="confidence", policy=policy)
    refused = np.mean([not a["in_distribution"] for a in answers])
    data = f"{sheet} test" if sheet == model else sheet
    low, high = bounds(figure(client, model, "rejection_rate", data, policy, "confidence"), len(answers))
    assert low <= refused <= high


@pytest.mark.parametrize("policy", ["balanced", "risk", "foreign_only", "accept_all"])
@pytest.mark.parametrize("sheet", MODELS)
def test_pairs_refuse_what_the_card_says_for_each_reason(client, sheet, policy):
    """Under each pair the shares of unfamiliar and of unsure images are the card's, within the same bounds."""
    answers = predictions(client, tiles(sheet), model="cifar10", policy=policy)
    data = "cifar10 test" if sheet == "cifar10" else sheet
    for reason in ("unfamiliar", "unsure"):
        refused = np.mean([a["reason"] == reason for a in answers])
        low, high = bounds(figure(client, "cifar10", f"rejection_rate_{reason}", data, policy), len(answers))
        assert low <= refused <= high


@pytest.mark.parametrize("model", MODELS)
def test_what_is_accepted_is_more_accurate(client, model):
    """On its own images the answers that pass the gate are right more often than all answers are."""
    labels = json.loads((FIXTURES / "labels.json").read_text())[model]
    answers = predictions(client, tiles(model), model=model)
    right = np.array([a["class_id"] == label for a, label in zip(answers, labels, strict=True)])
    kept = np.array([a["accepted"] for a in answers])
    assert right[kept].mean() > right.mean()


@pytest.mark.parametrize("model", MODELS)
def test_one_image_is_answered_as_onnx_runtime_does_bit_for_bit(client, model):
    """One image a request: every probability and the confidence are exactly those of the graph called directly."""
    images = tiles(model)[:12]
    for image, (probabilities, confidence) in zip(images, direct_answers(model, images), strict=True):
        [answer] = client.post(
            "/v1/predict", content=image, headers={"Content-Type": "image/png"}, params={"model": model}
        ).json()["predictions"]
        assert list(answer["probabilities"].values()) == probabilities
        assert answer["confidence"] == confidence


@pytest.mark.parametrize("model", MODELS)
def test_in_any_batch_mix_answers_differ_by_less_than_1e_5(client, model):
    """Requests of 1 to 20 images at once, batched as it happens: each image's answer is its own within 1e-5."""
    images = tiles(model)[:120]
    expected = direct_answers(model, images)
    sizes, cuts = itertools.cycle((1, 7, 1, 20, 3, 1)), [0]
    while cuts[-1] < len(images):
        cuts.append(min(len(images), cuts[-1] + next(sizes)))
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda span: predictions(client, images[slice(*span)], model=model), itertools.pairwise(cuts))
        answers = list(itertools.chain(*parts))
    for answer, (probabilities, confidence) in zip(answers, expected, strict=True):
        np.testing.assert_allclose(list(answer["probabilities"].values()), probabilities, rtol=0, atol=1e-5)
        assert answer["confidence"] == pytest.approx(confidence, abs=1e-5)


@pytest.mark.parametrize(("photo", "label", "reason"), [("shoes.jpg", "shoes", None), ("cat.png", None, "unfamiliar")])
def test_clothing_answers_when_no_model_is_named(client, photo, label, reason):
    """The README's curl, which names no model, is answered by clothing: it knows shoes, and no cats."""
    image = (ROOT / "examples" / photo).read_bytes()
    answer = client.post("/v1/predict", content=image).json()
    [prediction] = answer["predictions"]
    assert (answer["model"], prediction["reason"], prediction["accepted"]) == ("clothing", reason, label is not None)
    assert label in (None, prediction["label"])


@pytest.mark.parametrize(
    "bundle", sorted((ROOT / "models").glob("*/*/bundle.json")), ids=lambda p: f"{p.parts[-3]}-{p.parts[-2]}"
)
def test_every_shipped_bundle_has_its_card_and_fits(bundle):
    """Each bundle in the repository has a card with its accuracy, and its folder is at most 40 MB."""
    folder = bundle.parent
    accuracy = next(f for f in json.loads(bundle.read_text())["evaluation"] if f["metric"] == "accuracy")
    assert f"{accuracy['value']:.2%}" in (folder / "CARD.md").read_text()
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 40_000_000
