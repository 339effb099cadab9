"""A tritonclient that asks the shared service."""

from collections.abc import Iterator

import pytest
import tritonclient.http as triton

from tests.conftest import Service


@pytest.fixture(scope="module")
def asker(service: Service) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(service.url.removeprefix("http://")) as client:
        yield client
