"""What /v2 tells about itself: health, metadata, the index of models and the OpenAPI document."""

import json

import httpx
import tritonclient.http as triton

from service.web.v2.schemas import IndexEntry, ModelMetadata, ServerMetadata
from tests.conftest import ADMIN, SIDE
from tests.service.web.triton_client import OUTPUTS


def test_health_and_metadata(asker: triton.InferenceServerClient) -> None:
    """A client learns that the service is there, what it serves, and what goes in and comes out."""
    assert asker.is_server_live()
    assert asker.is_server_ready()
    assert asker.is_model_ready("colours")
    assert asker.is_model_ready("colours", "1")
    assert not asker.is_model_ready("colours", "3")
    assert not asker.is_model_ready("nope")
    server = asker.get_server_metadata()
    ServerMetadata.model_validate(server)
    assert server["name"] == "confgate"
    assert "binary_tensor_data" in server["extensions"]
    model = asker.get_model_metadata("colours", "1")
    ModelMetadata.model_validate(model)
    assert (model["name"], model["versions"], model["platform"]) == ("colours", ["1", "2"], "onnxruntime_onnx")
    assert model["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, SIDE, SIDE, 3]}]
    assert {item["name"]: (item["datatype"], item["shape"]) for item in model["outputs"]} == OUTPUTS


def test_the_document_covers_v2(client: httpx.Client) -> None:
    """OpenAPI describes every /v2 route, with all that it may answer."""
    document = client.get("/openapi.json").json()
    paths = {path for path in document["paths"] if path.startswith("/v2")}
    model = "/v2/models/{model}"
    assert paths == {
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/repository/index"),
        *(f"{model}{version}{what}" for version in ("", "/versions/{version}") for what in ("", "/ready", "/infer")),
        *("/v2/repository/models/{model}/load", "/v2/repository/models/{model}/unload"),
    }
    infer = document["paths"]["/v2/models/{model}/infer"]["post"]
    assert set(infer["responses"]) == {
        "200",
        "400",
        "401",
        "403",
        "404",
        "408",
        "413",
        "415",
        "421",
        "422",
        "429",
        "500",
        "503",
        "504",
    }
    schemas = document["components"]["schemas"]
    assert {"InferenceRequest", "InferenceResponse", "ErrorResponse", "RepositoryRequest"} <= set(schemas)
    assert not [path for path in paths if "HTTPValidationError" in json.dumps(document["paths"][path])]


def test_the_index_shows_what_is_served(asker: triton.InferenceServerClient) -> None:
    """The repository index has every version with its state."""
    entries = asker.get_model_repository_index(headers=ADMIN)
    assert [(entry["name"], entry["version"], entry["state"], entry["reason"]) for entry in entries] == [
        (name, version, "READY", "") for name, version in (("colours", "1"), ("colours", "2"), ("plain", "1"))
    ]
    for entry in entries:
        IndexEntry.model_validate(entry)
