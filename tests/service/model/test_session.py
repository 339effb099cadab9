"""Opening graphs: the contract of their tensors, and the truth about the device."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from service.errors import BundleError, DeviceError
from service.model.bundle import HashedFile, load_bundle
from service.model.session import CPU, CUDA, OnnxSession, active_device, choose_providers, open_session
from tests.conftest import BundleFolder, graph_bytes, make_bundle


def test_outputs_come_by_name_with_one_row_per_image(bundle_folder: BundleFolder) -> None:
    """A batch of any size gives logits and confidences for each of its images."""
    session = open_session(load_bundle(bundle_folder.folder), "forward", "cpu")
    assert session.device == "cpu"
    for n in (1, 5, 70):
        outputs = session.run(np.zeros((n, 8, 8, 3), np.uint8))
        assert {name: rows.shape for name, rows in outputs.items()} == {"logits": (n, 3), "confidence_logit": (n,)}


def test_epsilon_is_the_bundles(models: Path) -> None:
    """The perturbed graph is fed the epsilon of its bundle."""
    image = np.full((1, 8, 8, 3), (255, 0, 0), np.uint8)
    results = []
    for version, epsilon in ((1, 0.0), (2, 0.5)):
        folder = make_bundle(
            models,
            version=version,
            change=lambda raw, e=epsilon: raw["scores"]["confidence_preprocessed"].update(epsilon=e),
        )
        outputs = open_session(load_bundle(folder.folder), "perturbed", "cpu").run(image)
        results.append(outputs["confidence_logit_preprocessed"][0] - outputs["confidence_logit"][0])
    assert results == pytest.approx([0.0, 4.0], abs=1e-5)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            graph_bytes(side=9),
            r"input image: found tensor\(uint8\) \[N, 9, 9, 3\], expected tensor\(uint8\) \[N, 8, 8, 3\]",
        ),
        (graph_bytes(batch=4), r"input image: found tensor\(uint8\) \[4, 8, 8, 3\]"),
        (graph_bytes(confidence=False), r"outputs: found \['logits'\], expected \['confidence_logit', 'logits'\]"),
        (graph_bytes(perturbed=True), r"inputs: found \['epsilon', 'image'\], expected \['image'\]"),
        (b"not a graph", "found a file that is not ONNX"),
        (graph_bytes().replace(b"ReduceMean", b"ReduceMoon"), "what ONNX Runtime refuses"),
    ],
    ids=["size", "fixed batch", "output missing", "input too many", "no graph", "unknown operator"],
)
def test_a_graph_that_breaks_the_contract_is_refused(bundle_folder: BundleFolder, graph: bytes, message: str) -> None:
    """Names, types and shapes of tensors are checked when a graph is opened, and the message shows both sides."""
    bundle_folder.replace_graph("forward", graph)
    with pytest.raises(BundleError, match=message) as caught:
        open_session(load_bundle(bundle_folder.folder), "forward", "cpu")
    assert caught.value.file.endswith("model.onnx")


def test_the_label_count_is_checked(bundle_folder: BundleFolder) -> None:
    """A bundle with more labels than its graph has logits is refused."""
    bundle_folder.rewrite(lambda raw: raw["labels"].append("violet"))
    with pytest.raises(BundleError, match=r"output logits: found tensor\(float\) \[N, 3\], expected .*\[N, 4\]"):
        open_session(load_bundle(bundle_folder.folder), "forward", "cpu")


def test_a_graph_that_gives_no_numbers_is_refused(bundle_folder: BundleFolder) -> None:
    """A graph whose outputs are not finite in the warm-up is refused before it serves anybody."""
    bundle_folder.replace_graph("forward", graph_bytes(gain=float("inf")))
    with pytest.raises(BundleError, match="warm-up"):
        open_session(load_bundle(bundle_folder.folder), "forward", "cpu")


def test_the_device_decides_the_providers() -> None:
    """cpu never asks for CUDA, cuda and auto do where it is there, without TF32."""
    assert choose_providers("cpu", [CUDA, CPU]) == [CPU]
    assert choose_providers("auto", [CPU]) == [CPU]
    for device in ("auto", "cuda"):
        assert choose_providers(device, [CUDA, CPU]) == [(CUDA, {"use_tf32": "0"}), CPU]


def test_cuda_that_is_not_built_in_is_refused() -> None:
    """Device cuda with an ONNX Runtime that has no CUDA says what to install."""
    with pytest.raises(DeviceError, match=r"only has AzureExecutionProvider, CPUExecutionProvider.*confgate\[gpu\]"):
        choose_providers("cuda", ["AzureExecutionProvider", CPU])


def test_what_the_session_reports_is_the_device() -> None:
    """A session that silently fell back to the CPU counts as cpu, and is refused where cuda was asked for."""
    assert active_device("auto", [CUDA, CPU]) == "cuda"
    assert active_device("auto", [CPU]) == "cpu"
    assert active_device("cpu", [CPU]) == "cpu"
    with pytest.raises(DeviceError, match="the session runs on CPUExecutionProvider"):
        active_device("cuda", [CPU])


def test_batches_are_padded_to_buckets_and_cut_back() -> None:
    """On CUDA a batch is filled up to the next bucket, and only its own rows come back."""
    seen = []

    class Runtime:
        def run(self, _: object, feed: dict[str, np.ndarray], _options: object) -> list[np.ndarray]:
            seen.append(len(feed["image"]))
            return [feed["image"].reshape(len(feed["image"]), -1).sum(axis=1).astype(np.float32)]

    session = OnnxSession(Runtime(), "cuda", (CUDA,), ("logits",), {}, buckets=(1, 2, 4, 8))
    images = np.arange(3, dtype=np.uint8).reshape(3, 1, 1, 1)
    assert session.run(images)["logits"].tolist() == [0, 1, 2]
    assert len(session.run(np.zeros((9, 1, 1, 1), np.uint8))["logits"]) == 9
    assert seen == [4, 9]


def test_weights_may_lie_in_an_external_file(bundle_folder: BundleFolder, tmp_path: Path) -> None:
    """A graph that keeps its weights in a hashed file beside it gives the same outputs."""
    image = np.full((1, 8, 8, 3), (200, 10, 60), np.uint8)
    before = open_session(load_bundle(bundle_folder.folder), "forward", "cpu").run(image)
    graph = onnx.load_from_string(graph_bytes())
    (gain,) = (tensor for tensor in graph.graph.initializer if tensor.name == "gain")
    onnx.external_data_helper.set_external_data(gain, "weights.data")
    onnx.save(graph, tmp_path / "m.onnx")
    bundle_folder.replace_graph("forward", (tmp_path / "m.onnx").read_bytes())
    (tmp_path / "weights.data").rename(bundle_folder.folder / "weights.data")
    entry = HashedFile.of(bundle_folder.folder / "weights.data").model_dump()
    bundle_folder.rewrite(lambda raw: raw.update(external_data=[entry]))
    after = open_session(load_bundle(bundle_folder.folder), "forward", "cpu").run(image)
    assert all(np.array_equal(before[name], after[name]) for name in before)
