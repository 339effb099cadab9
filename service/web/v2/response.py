"""Decisions → the outputs of a /v2 infer response, in JSON or as binary tensor data."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from pydantic_core import to_json
from starlette.types import ASGIApp

from service.model.gate import Decision, Gate
from service.model.manifest import Manifest
from service.model.scores import ScoreName
from service.web.answers import BINARY, JSON, whole_answer
from service.web.v2.request import InferRequest, Output

LENGTH_BYTES = 4
HEADER_LENGTH = b"inference-header-content-length"
PACKED = {"INT64": "<i8", "FP32": "<f4", "BOOL": "?"}  # as binary data
PREPROCESSED = "confidence_preprocessed"

Rows = Sequence[Decision]


class Spec(NamedTuple):
    """An output's datatype, its shape for one image, and its values for all images in one list."""

    datatype: str
    shape: tuple[int, ...]
    values: Callable[[Rows, Sequence[str]], list[Any]]


def specs_of(manifest: Manifest) -> Mapping[str, Spec]:
    """The outputs of a model; typicality and the preprocessed confidence only where there is one."""
    shown: ScoreName = "confidence" if manifest.has_confidence else "max_softmax"
    return _specs(len(manifest.labels), shown, "typicality" in manifest.scores, manifest.preprocessed_score)


@lru_cache(maxsize=64)
def _specs(classes: int, shown: ScoreName, typicality: bool, preprocessed: ScoreName | None) -> Mapping[str, Spec]:
    specs = {
        "class_id": Spec("INT64", (), lambda rows, _: [row.reading.class_id for row in rows]),
        "label": Spec("BYTES", (), lambda rows, labels: [labels[row.reading.class_id] for row in rows]),
        "probabilities": Spec(
            "FP32", (classes,), lambda rows, _: list(chain.from_iterable(row.reading.probabilities for row in rows))
        ),
        "confidence": _score(shown),
        "in_distribution": Spec("BOOL", (), lambda rows, _: [row.in_distribution for row in rows]),
        "accepted": Spec("BOOL", (), lambda rows, _: [row.accepted for row in rows]),
        "reason": Spec("BYTES", (), lambda rows, _: [row.reason or "" for row in rows]),
        "certainty": Spec("FP32", (), lambda rows, _: [row.reading.certainty for row in rows]),
    }
    if typicality:
        specs["typicality"] = _score("typicality")
    if preprocessed is not None:
        specs[PREPROCESSED] = _score(preprocessed)
    return specs


def _score(name: ScoreName) -> Spec:
    return Spec("FP32", (), lambda rows, _: [row.reading.scores[name][1] for row in rows])


def infer_response(manifest: Manifest, gate: Gate, asked: InferRequest, decisions: Rows, request_id: str) -> ASGIApp:
    specs = specs_of(manifest)
    chosen = asked.outputs
    if chosen is None:
        computed = manifest.preprocessed_score in decisions[0].reading.scores
        chosen = tuple(Output(name, asked.binary_output) for name in specs if computed or name != PREPROCESSED)
    described, tails = [], []
    for output in chosen:
        datatype, shape, values = _tensor(manifest, specs[output.name], output, decisions)
        tensor: dict[str, Any] = {"name": output.name, "datatype": datatype, "shape": [len(decisions), *shape]}
        if output.binary:
            tails.append(_packed(datatype, values))
            tensor["parameters"] = {"binary_data_size": len(tails[-1])}
        else:
            # As the 32-bit numbers that the datatype promises.
            tensor["data"] = array("f", values).tolist() if datatype == "FP32" else values
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
        return whole_answer(head, JSON)
    return whole_answer(b"".join((head, *tails)), BINARY, (HEADER_LENGTH, b"%d" % len(head)))


def _tensor(manifest: Manifest, spec: Spec, output: Output, decisions: Rows) -> tuple[str, tuple[int, ...], list[Any]]:
    labels = manifest.labels
    if output.classes is None:
        return spec.datatype, spec.shape, spec.values(decisions, labels)
    classes = min(output.classes, len(labels))
    texts: list[str] = []
    for decision in decisions:
        shares = decision.reading.probabilities
        ranked = sorted(range(len(shares)), key=shares.__getitem__, reverse=True)[:classes]
        texts += [f"{shares[i]:f}:{i}:{labels[i]}" for i in ranked]
    return "BYTES", (classes,), texts


def _packed(datatype: str, values: list[Any]) -> bytes:
    if datatype != "BYTES":
        return np.array(values, PACKED[datatype]).tobytes()
    encoded = [text.encode() for text in values]
    return b"".join(part for item in encoded for part in (len(item).to_bytes(LENGTH_BYTES, "little"), item))
