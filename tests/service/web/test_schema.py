"""The OpenAPI document against the running service: schemathesis makes requests from it, and judges the answers."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import Failure

from service.model.images import MEDIA_TYPES
from service.settings import Settings
from service.web.app import create_app
from service.web.keys import new_key
from tests.conftest import Service, make_bundle
from tests.pair_bundles import make_pair_bundle
from tests.properties import examples, seed_of_this_run

# schemathesis knows some types of image by itself, and would leave requests with the others out.
schemathesis.serializer.alias(sorted(MEDIA_TYPES), "application/octet-stream")
OPS, OPS_LINE = new_key("ops", "admin")
# What the document forbids must be refused, and any 4xx is a refusal: by default 413, for too many files, is none.
REFUSED = {"negative_data_rejection": {"expected-statuses": ["4xx", "5xx"]}}
CONFIG = schemathesis.Config.from_dict({"checks": REFUSED, "seed": seed_of_this_run()})
SCHEMA = schemathesis.openapi.from_dict(create_app(Settings()).openapi(), config=CONFIG)
load_all_checks()


def never_its_fault(_context: object, response: schemathesis.Response, _case: schemathesis.Case) -> None:
    """Like schemathesis' own, but a deadline of 1 ms, which the document allows, may be missed."""
    assert response.status_code < 500 or response.status_code == 504, response.text


# Not positive_data_acceptance: a schema cannot say which bytes are an image, or which models are loaded.
CHECKED = CHECKS.get_by_names(
    [
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
        "unsupported_method",
    ]
)
CHECKED.append(never_its_fault)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of its own, because an admin's requests leave traces."""
    models = tmp_path_factory.mktemp("described") / "models"
    make_bundle(models)
    make_pair_bundle(models, "pairs")
    running = Service(models, env={"CONFGATE_API_KEYS": OPS_LINE, "CONFGATE_ACCESS_LOG": "false"})
    yield running.wait_until_serving()
    assert running.stop() == 0


@SCHEMA.parametrize()
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
def test_the_service_is_as_its_document_says(case: schemathesis.Case, described: Service) -> None:
    """Whatever the document allows or forbids is answered with a status, type and body that the document has."""
    case.call_and_validate(base_url=described.url, headers={"X-API-Key": OPS}, checks=CHECKED, timeout=60)


def test_a_lie_in_the_document_is_found(described: Service) -> None:
    """The checks are awake: an answer that the document does not describe fails."""
    document = create_app(Settings()).openapi()
    del document["paths"]["/v1/models/{model}"]["get"]["responses"]["404"]
    operation = schemathesis.openapi.from_dict(document)["/v1/models/{model}"]["GET"]
    case = operation.Case(path_parameters={"model": "nope"})
    with pytest.raises((Failure, BaseExceptionGroup)):
        case.call_and_validate(base_url=described.url, headers={"X-API-Key": OPS}, checks=CHECKED)
