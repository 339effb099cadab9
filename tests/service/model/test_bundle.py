"""Loading believes nothing it has not checked; writing publishes whole or not at all."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from service.errors import BundleError
from service.model.bundle import Bundle, HashedFile, Manifest, load_bundle, write_bundle
from tests.conftest import BundleFolder, graph_bytes, make_bundle


def test_a_good_bundle_loads(bundle_folder: BundleFolder) -> None:
    """What was written is what is loaded, field by field."""
    bundle = load_bundle(bundle_folder.folder)
    assert json.loads(bundle.manifest.to_json())["scores"] == bundle_folder.raw["scores"]
    assert bundle.manifest.preprocessed_score == "confidence_preprocessed"
    assert bundle.graph_path("forward").name == "model.onnx"


def policy(raw: dict[str, Any], score: str = "confidence", name: str = "tpr95") -> dict[str, Any]:
    found: dict[str, Any] = raw["scores"][score]["policies"][name]
    return found


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "schema version": (lambda raw: raw.update(schema_version=3), "schema_version: found 3, expected 1 or 2"),
    "no pairs": (lambda raw: raw.update(schema_version=2), "pairs belongs to schema_version 2"),
    "schema version as text": (lambda raw: raw.update(schema_version="1"), "schema_version: found '1', expected 1"),
    "schema version true": (lambda raw: raw.update(schema_version=True), "schema_version: found True"),
    "no schema version": (lambda raw: raw.pop("schema_version"), "schema_version: found None"),
    "unknown field": (lambda raw: raw.update(extra=1), "extra: found 1, expected Extra inputs"),
    "missing field": (lambda raw: raw.pop("labels"), "labels: found nothing, expected Field required"),
    "other name": (lambda raw: raw.update(name="colors"), "name: found 'colors', expected 'colours'"),
    "other version": (lambda raw: raw.update(version=2), "version: found 2, expected '1'"),
    "version as text": (lambda raw: raw.update(version="1"), "version: found '1'"),
    "naive time": (lambda raw: raw.update(created="2026-01-01T00:00:00"), "created: found"),
    "NaN threshold": (lambda raw: policy(raw).update(threshold=float("nan")), "policies.tpr95.threshold: found nan"),
    "infinite threshold": (lambda raw: policy(raw).update(threshold=float("inf")), "threshold: found inf"),
    "rate above 1": (lambda raw: policy(raw).update(expected_rejection_rate=1.1), "rejection_rate: found 1.1"),
    "no images": (lambda raw: policy(raw).update(n=0), "tpr95.n: found 0"),
    "no reason": (lambda raw: policy(raw).update(how=""), "tpr95.how: found ''"),
    "policy name": (lambda raw: raw["scores"]["confidence"]["policies"].update({"A B": policy(raw)}), "A B"),
    "no policies": (lambda raw: raw["scores"]["confidence"].update(policies={}), "policies: found {}"),
    "one label": (lambda raw: raw.update(labels=["a"]), r"labels: found \['a'\]"),
    "same labels": (lambda raw: raw.update(labels=["a", "b", "a"]), r"but \['a'\] occur more than once"),
    "temperature 0": (lambda raw: raw.update(temperature=0), "temperature: found 0"),
    "unknown score": (lambda raw: raw["scores"].update(entropy=raw["scores"]["confidence"]), "entropy"),
    "energy without display": (
        lambda raw: raw["scores"].update(energy=raw["scores"]["confidence"]),
        "scores.energy.display belongs to",
    ),
    "confidence with display": (
        lambda raw: raw["scores"]["confidence"].update(display={"location": 0.0, "scale": 1.0}),
        "scores.confidence.display belongs to",
    ),
    "scale 0": (lambda raw: raw["scores"]["energy"]["display"].update(scale=0), "display.scale: found 0"),
    "typicality without quantiles": (
        lambda raw: raw["scores"]["typicality"].pop("typicality"),
        "scores.typicality.typicality belongs to",
    ),
    "no component": (
        lambda raw: raw["scores"]["typicality"]["typicality"]["components"].clear(),
        "typicality.components: found",
    ),
    "component of another graph": (
        lambda raw: raw["scores"]["typicality"]["typicality"]["components"].update(odin=[0.0] * 257),
        "components cannot be",
    ),
    "too few quantiles": (
        lambda raw: raw["scores"]["typicality"]["typicality"]["minimum"].pop(),
        "typicality.minimum: found",
    ),
    "falling quantiles": (
        lambda raw: raw["scores"]["typicality"]["typicality"]["components"]["energy"].reverse(),
        "quantiles must not fall",
    ),
    "rank above 1": (
        lambda raw: raw["scores"]["typicality"]["typicality"]["minimum"].__setitem__(256, 1.5),
        "minimum holds ranks",
    ),
    "interval beside its rate": (
        lambda raw: raw["scores"]["confidence"]["policies"]["tpr95"].update(expected_rejection_interval=[0.2, 0.3]),
        "must hold expected_rejection_rate",
    ),
    "unknown resize": (lambda raw: raw["input"].update(resize="squash"), "input.resize: found 'squash'"),
    "crop and stretch": (lambda raw: raw["input"].update(crop_fraction=0.9), "crop_fraction is only for"),
    "no decode margin": (
        lambda raw: raw["input"].update(decode_margin=0.5),
        'input.decode_margin: found 0.5, expected a number from 1, or "full"',
    ),
    "default score": (lambda raw: raw["default"].update(score="odin"), "default.score odin is not in scores"),
    "default policy": (lambda raw: raw["default"].update(policy="risk"), "default.policy risk is not in"),
    "evaluation policy": (lambda raw: raw["evaluation"][0].update(policy="tpr95"), "policy tpr95 names no score"),
    "epsilon missing": (lambda raw: raw["scores"]["confidence_preprocessed"].pop("epsilon"), "epsilon belongs to"),
    "epsilon too many": (lambda raw: raw["scores"]["confidence"].update(epsilon=0.1), "epsilon belongs to"),
    "score temperature": (lambda raw: raw["scores"]["confidence"].update(temperature=2.0), "belongs to odin"),
    "no perturbed graph": (lambda raw: raw["graphs"].pop("perturbed"), "need each other"),
    "no preprocessed score": (lambda raw: raw["scores"].pop("confidence_preprocessed"), "need each other"),
    "no forward graph": (lambda raw: raw["graphs"].pop("forward"), "graphs.forward is missing"),
    "no confidence": (lambda raw: raw["scores"].pop("confidence"), "needs scores.confidence"),
    "other edges": (
        lambda raw: raw["scores"]["confidence"]["reference"]["edges"].__setitem__(0, 0.5),
        "HISTOGRAM_EDGES",
    ),
    "counts": (lambda raw: raw["scores"]["confidence"]["reference"]["counts"].pop(), "29 counts for 30 edges"),
    "empty counts": (
        lambda raw: raw["scores"]["confidence"]["reference"].update(counts=[0] * 30),
        "counts are all zero",
    ),
    "file above": (lambda raw: raw["graphs"]["forward"].update(file="../model.onnx"), "forward.file: found '../mod"),
    "file absolute": (lambda raw: raw["graphs"]["forward"].update(file="/etc/passwd"), "file: found '/etc/passwd'"),
    "file twice": (
        lambda raw: raw["graphs"].update(perturbed=raw["graphs"]["forward"]),
        "must name different files",
    ),
    "wrong hash": (lambda raw: raw["graphs"]["forward"].update(sha256="0" * 64), "model.onnx: sha256: found"),
    "wrong size": (lambda raw: raw["graphs"]["forward"].update(size=3), "expected 3 bytes"),
    "missing file": (lambda raw: raw["graphs"]["forward"].update(file="m.onnx"), "m.onnx: file: found nothing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_bundle_that_breaks_its_contract_is_refused(models: Path, case: str) -> None:
    """Each breach of the contract is refused, and the message names the file and what is wrong with it."""
    change, message = WRONG[case]
    bundle_folder = make_bundle(models, all_scores=True)
    bundle_folder.rewrite(change)
    with pytest.raises(BundleError, match=message) as caught:
        load_bundle(bundle_folder.folder)
    assert caught.value.file.startswith(str(bundle_folder.folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "not JSON"), ("[]", "found a JSON list"), ("{", "not JSON")],
)
def test_what_is_not_json_is_refused(bundle_folder: BundleFolder, text: str, message: str) -> None:
    """A bundle.json that is cut off, empty or no object is refused."""
    (bundle_folder.folder / "bundle.json").write_text(text)
    with pytest.raises(BundleError, match=message):
        load_bundle(bundle_folder.folder)


def test_a_folder_without_bundle_json_is_refused(tmp_path: Path) -> None:
    """A folder that is no bundle, or is not there, is refused by name."""
    with pytest.raises(BundleError, match=r"bundle\.json: file: found nothing"):
        load_bundle(tmp_path)
    with pytest.raises(BundleError, match="no such folder"):
        load_bundle(tmp_path / "nope")


def test_a_link_out_of_the_folder_is_refused(bundle_folder: BundleFolder, tmp_path: Path) -> None:
    """A graph that is a link to a file elsewhere is refused, though its content has the right hash."""
    graph = bundle_folder.folder / "model.onnx"
    graph.rename(tmp_path / "elsewhere.onnx")
    graph.symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(BundleError, match=r"found a link to .*elsewhere"):
        load_bundle(bundle_folder.folder)


def test_a_file_that_nobody_hashed_is_refused(bundle_folder: BundleFolder) -> None:
    """An extra file that a graph could read its weights from is refused; documents are not."""
    (bundle_folder.folder / "notes.md").touch()
    load_bundle(bundle_folder.folder)
    (bundle_folder.folder / "weights.data").touch()
    with pytest.raises(BundleError, match=r"weights\.data: file: found a file that bundle\.json does not name"):
        load_bundle(bundle_folder.folder)


def test_external_data_is_hashed_too(models: Path, bundle_folder: BundleFolder) -> None:
    """A weights file beside the graphs is part of the bundle, and its change is noticed."""
    weights = bundle_folder.folder / "weights.data"
    weights.write_bytes(b"12345")
    entry = HashedFile.of(weights).model_dump()
    bundle_folder.rewrite(lambda raw: raw.update(external_data=[entry]))
    assert load_bundle(bundle_folder.folder).manifest.external_data[0].size == 5
    weights.write_bytes(b"12346")
    with pytest.raises(BundleError, match=r"weights\.data: sha256"):
        load_bundle(models / "colours" / "1")


def test_a_graph_that_reads_weights_from_a_document_is_refused(bundle_folder: BundleFolder) -> None:
    """Documents are not hashed, so no weights may come from one, whatever its name; nor from outside the bundle."""
    for file in ("CARD.md", "notes.json", "../weights.bin", "model.onnx"):
        model = onnx.load_from_string(graph_bytes())
        gain = next(tensor for tensor in model.graph.initializer if tensor.name == "gain")
        gain.ClearField("raw_data")
        gain.data_location = onnx.TensorProto.EXTERNAL
        gain.external_data.add(key="location", value=file)
        bundle_folder.replace_graph("forward", model.SerializeToString())
        with pytest.raises(BundleError, match=rf"model\.onnx: external data: found '{re.escape(file)}'"):
            load_bundle(bundle_folder.folder)


def manifest_of(folder: BundleFolder, version: int) -> Manifest:
    raw = {**json.loads((folder.folder / "bundle.json").read_text()), "version": version}
    return Manifest.model_validate_json(json.dumps(raw), strict=True)


def test_a_version_is_never_written_twice(models: Path, bundle_folder: BundleFolder) -> None:
    """Writing a version that exists is refused, and what exists stays."""
    before = (bundle_folder.folder / "bundle.json").read_bytes()
    with pytest.raises(BundleError, match="never edited"):
        write_bundle(models, manifest_of(bundle_folder, 1), {})
    assert (bundle_folder.folder / "bundle.json").read_bytes() == before


def test_a_failed_write_leaves_nothing(models: Path, bundle_folder: BundleFolder) -> None:
    """A missing file, a wrong hash or a failed check leaves no half-written folder."""
    manifest = manifest_of(bundle_folder, 2)
    files: dict[str, Path | bytes] = {name: bundle_folder.folder / name for name in ("model.onnx", "perturbed.onnx")}

    def fail(_: Bundle) -> None:
        raise RuntimeError("the answers differ")

    with pytest.raises(BundleError, match=r"perturbed\.onnx"):
        write_bundle(models, manifest, {"model.onnx": files["model.onnx"]})
    with pytest.raises(BundleError, match=r"model\.onnx: (sha256|size)"):
        write_bundle(models, manifest, {**files, "model.onnx": graph_bytes(gain=11.0)})
    with pytest.raises(BundleError, match="plain file name"):
        write_bundle(models, manifest, {**files, "../CARD.md": b""})
    with pytest.raises(RuntimeError, match="the answers differ"):
        write_bundle(models, manifest, files, check=fail)
    assert [entry.name for entry in (models / "colours").iterdir()] == ["1"]
    assert write_bundle(models, manifest, files).manifest.version == 2


def test_a_plain_classifier_is_a_bundle(models: Path) -> None:
    """A bundle without confidence is gated on max_softmax, with or without ODIN."""
    assert load_bundle(make_bundle(models, "a", confidence=False).folder).manifest.preprocessed_score == "odin"
    without = load_bundle(make_bundle(models, "b", confidence=False, perturbed=False).folder)
    assert without.manifest.preprocessed_score is None
    assert not without.manifest.has_confidence
