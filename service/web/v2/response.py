"""Decisions → the outputs of a /v2 infer response, in JSON or as binary tensor data."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import to_json
from starlette.responses import Response

from service.model.gate import Decision, Gate
from service.model.manifest import Manifest
from service.model.scores import ScoreName
from service.web.v2.request import InferRequest, Output

LENGTH_BYTES = 4
HEADER_LENGTH = "Inference-Header-Content-Length"


class Spec(NamedTuple):
    """An output's datatype, its shape for one image, and its values for all."""

    datatype: str
    shape: tuple[int, ...]
    values: Callable[[Sequence[Decision]], Any]


def specs_of(manifest: Manifest) -> dict[str, Spec]:
    """The outputs of a model; typicality and the preprocessed confidence only where there is one."""
    labels = manifest.labels
    shown: ScoreName = "confidence" if manifest.has_confidence else "max_softmax"
    specs = {
        "class_id": Spec("INT64", (), lambda rows: np.array([row.reading.class_id for row in rows], "<i8")),
        "label": Spec("BYTES", (), lambda rows: [labels[row.reading.class_id] for row in rows]),
        "probabilities": Spec(
            "FP32", (len(labels),), lambda rows: np.array([row.reading.probabilities for row in rows], "<f4")
        ),
        "confidence": Spec("FP32", (), lambda rows: np.array([row.reading.scores[shown][1] for row in rows], "<f4")),
        "in_distribution": Spec("BOOL", (), lambda rows: np.array([row.in_distribution for row in rows], np.bool_)),
        "accepted": Spec("BOOL", (), lambda rows: np.array([row.accepted for row in rows], np.bool_)),
        "reason": Spec("BYTES", (), lambda rows: [row.reason or "" for row in rows]),
        "certainty": Spec("FP32", (), lambda rows: np.array([row.reading.certainty for row in rows], "<f4")),
    }
    if "typicality" in manifest.scores:
        specs["typicality"] = Spec(
            "FP32", (), lambda rows: np.array([row.reading.scores["typicality"][1] for row in rows], "<f4")
        )
    preprocessed = manifest.preprocessed_score
    if preprocessed is not None:
        specs["confidence_preprocessed"] = Spec(
            "FP32", (), lambda rows: np.array([row.reading.scores[preprocessed][1] for row in rows], "<f4")
        )
    return specs


def infer_response(
    manifest: Manifest, gate: Gate, asked: InferRequest, decisions: Sequence[Decision], request_id: str
) -> Response:
    specs = specs_of(manifest)
    if manifest.preprocessed_score not in decisions[0].reading.scores:
        specs.pop("confidence_preprocessed", None)
    chosen = asked.outputs or tuple(Output(name, asked.binary_output) for name in specs)
    described, tails = [], []
    for output in chosen:
        datatype, shape, values = _tensor(manifest, specs[output.name], output, decisions)
        tensor: dict[str, Any] = {"name": output.name, "datatype": datatype, "shape": [len(decisions), *shape]}
        if output.binary:
            tails.append(_packed(values))
            tensor["parameters"] = {"binary_data_size": len(tails[-1])}
        else:
            tensor["data"] = values if isinstance(values, list) else values.ravel().tolist()
        described.append(tensor)
    parameters = {"score": gate.score, "policy": gate.policy, "threshold": gate.threshold_shown}
    if gate.certainty_threshold_shown is not None:
        parameters["certainty_threshold"] = gate.certainty_threshold_shown
    head = to_json(
        {
            "model_name": manifest.name,
            "model_version": str(manifest.version),
            "id": asked.id or request_id,
            "parameters": parameters,
            "outputs": described,
        }
    )
    if not tails:
        return Response(head, media_type="application/json")
    headers = {HEADER_LENGTH: str(len(head))}
    return Response(b"".join((head, *tails)), headers=headers, media_type="application/octet-stream")


def _tensor(
    manifest: Manifest, spec: Spec, output: Output, decisions: Sequence[Decision]
) -> tuple[str, tuple[int, ...], Any]:
    if output.classes is None:
        return spec.datatype, spec.shape, spec.values(decisions)
    classes = min(output.classes, len(manifest.labels))
    texts: list[str] = []
    for decision in decisions:
        shares = decision.reading.probabilities
        ranked = sorted(range(len(shares)), key=shares.__getitem__, reverse=True)[:classes]
        texts += [f"{shares[i]:f}:{i}:{manifest.labels[i]}" for i in ranked]
    return "BYTES", (classes,), texts


def _packed(values: Any) -> bytes:
    if not isinstance(values, list):
        return bytes(values.tobytes())
    encoded = [text.encode() for text in values]
    return b"".join(part for item in encoded for part in (len(item).to_bytes(LENGTH_BYTES, "little"), item))
