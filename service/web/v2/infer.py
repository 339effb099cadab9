"""POST /v2/models/{model}[/versions/{version}]/infer, by the Open Inference Protocol."""

import asyncio
import re
from functools import partial

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import MalformedRequest, UnsupportedType
from service.model.gate import Decision
from service.serving.metrics import INFER_ROUTE
from service.serving.served_model import Model
from service.web.bodies import SMALL_JSON, read_whole
from service.web.inference_endpoint import InferenceEndpoint
from service.web.parameters import MAX_VERSION, whole_number
from service.web.v2.request import InferRequest, read_infer
from service.web.v2.response import infer_response, specs_of

INFER_ROUTES = (INFER_ROUTE, "/v2/models/{model}/versions/{version}/infer")
INFER_PATH = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer$")
MAX_HEADER_LENGTH = 2**40


class InferEndpoint:
    """Answers POST on its routes, and passes everything else on to the framework, whose layers would cost time.

    The framework knows these routes too, for its answers to other methods and to a slash at the end.
    """

    def __init__(self, endpoint: InferenceEndpoint, otherwise: ASGIApp) -> None:
        self._endpoint = endpoint
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = INFER_PATH.match(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if path is None:
            await self._otherwise(scope, receive, send)
        else:
            await self._infer(path["model"], path["version"], scope, receive, send)

    async def _infer(self, name: str, asked_version: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        with self._endpoint.begin(scope, receive) as exchange:
            header_length = read_header_length(scope)
            version = None if asked_version is None else whole_number("version", asked_version, MAX_VERSION)
            headers = exchange.read_headers()
            model = exchange.choose_model(name, version)
            with exchange.deadline() as deadline:
                body = await read_whole(
                    scope, exchange.receive, headers.content_length, self._endpoint.limits.max_bytes
                )
                asked = await self._read_body(body, header_length, model)
                gate = model.choose_gate(asked.score, asked.policy, asked.preprocess)
                wanted = any(output.name == "confidence_preprocessed" for output in asked.outputs or ())
                decisions = await exchange.predict(
                    deadline, model, gate, asked.images, preprocess=asked.preprocess or wanted
                )
            decided = [decision for decision in decisions if isinstance(decision, Decision)]
            exchange.answer = infer_response(model.manifest, gate, asked, decided, exchange.request_id)
        await exchange.send_answer(scope, receive, send)

    async def _read_body(self, body: bytes, header_length: int | None, model: Model) -> InferRequest:
        manifest = model.manifest
        read = partial(read_infer, body, header_length, manifest.input, specs_of(manifest), self._endpoint.limits)
        json_length = len(body) if header_length is None else header_length
        asked = read() if json_length < SMALL_JSON else await asyncio.to_thread(read)
        for name, said, found in (
            ("model_name", asked.model, manifest.name),
            ("model_version", asked.version, str(manifest.version)),
        ):
            if said not in (None, found):
                raise MalformedRequest(f"{name} is {str(said)[:60]!r}, but the path leads to {found!r}")
        return asked


def read_header_length(scope: Scope) -> int | None:
    """How many bytes of the body are JSON, where binary data follows it; refuses what the protocol does not have."""
    if scope["query_string"]:
        raise MalformedRequest("this route takes no query: options go into the request's parameters")
    header_length = None
    for name, value in scope["headers"]:
        if name == b"inference-header-content-length":
            header_length = whole_number("Inference-Header-Content-Length", value.decode("latin-1"), MAX_HEADER_LENGTH)
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise UnsupportedType("compressed bodies are not served: send the request without Content-Encoding")
    return header_length
