"""Everything that can go wrong, as one tree. The numbers are what `service.web.problems` answers over HTTP.

ConfgateError
├── StartError                   stops the start, or refuses a reload, with a message for the operator
│   ├── SettingsError            a setting has a value that is not allowed
│   ├── BundleError              a bundle breaks its contract: file, field, found, expected
│   ├── StateError               what operators have set cannot be read back
│   └── DeviceError              the device that was asked for cannot be had
└── RequestError                 one request cannot be answered; the service goes on
    ├── MalformedRequest     400 the request cannot be read, or asks for something that does not exist
    ├── Unauthorised         401 no API key, or one that is not known
    ├── Forbidden            403 a key that may not do this
    ├── CrossSite            403 a web page of another site sent it
    ├── UnknownModel         404 no such model or version is loaded
    ├── BodyTimeout          408 the body came too slowly, or never came whole
    ├── LoadRefused          409 a bundle was refused; what was served before goes on
    ├── TooLarge             413 too many bytes, pixels, images or parts
    ├── UnsupportedType      415 the Content-Type is none that is served
    ├── InvalidImage         422 the bytes are not an image that can be decoded
    ├── WrongShape           422 a tensor's shape is not the model's, or not that of its data
    ├── WrongHost            421 it names a host that is not this service
    ├── QueueFull            429 the queue has no room: try again after `retry_after` seconds
    │   └── MemoryBudgetExceeded 429 bodies in flight take the memory that is allowed
    ├── InferenceFailed      500 the model failed on this batch
    ├── StateNotSaved        500 a change could not be kept, and was not made
    ├── GraphUnavailable     503 a graph that is opened at its first use cannot be opened
    ├── NotReady             503 no model is loaded yet, or the service is shutting down
    └── DeadlineExceeded     504 the answer would come too late

ClientGone stands apart: the client disconnected, so there is no answer to send.
"""

# ruff: noqa: N818 - the names say what happened, as httpx's do; "Error" is on the branches of the tree


class ConfgateError(Exception):
    """Base of every error that confgate raises on purpose."""


class StartError(ConfgateError):
    """Stops the start of the service."""


class SettingsError(StartError):
    """A setting has a value that is not allowed."""


class StateError(StartError):
    """What operators have set cannot be read back."""


class DeviceError(StartError):
    """The device that was asked for is not available."""


class BundleError(StartError):
    """A bundle breaks its contract."""

    def __init__(self, file: object, field: str, found: object, expected: str) -> None:
        self.file = str(file)
        self.field = field
        self.found = found
        self.expected = expected
        super().__init__(f"{self.file}: {field}: found {found}, expected {expected}")


class RequestError(ConfgateError):
    """One request cannot be answered."""

    def __init__(self, detail: str, *, index: int | None = None) -> None:
        self.detail = detail
        # Which image of the request; set by the code that knows their order.
        self.index = index
        super().__init__(detail)


class MalformedRequest(RequestError): ...


class Unauthorised(RequestError): ...


class Forbidden(RequestError): ...


class CrossSite(RequestError): ...


class UnknownModel(RequestError): ...


class BodyTimeout(RequestError): ...


class LoadRefused(RequestError): ...


class TooLarge(RequestError): ...


class UnsupportedType(RequestError): ...


class InvalidImage(RequestError): ...


class WrongShape(RequestError): ...


class WrongHost(RequestError): ...


class QueueFull(RequestError):
    def __init__(self, detail: str, *, retry_after: int) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class MemoryBudgetExceeded(QueueFull): ...


class InferenceFailed(RequestError): ...


class StateNotSaved(RequestError): ...


class GraphUnavailable(RequestError): ...


class NotReady(RequestError): ...


class DeadlineExceeded(RequestError): ...


class ClientGone(Exception):
    """The client disconnected before its answer."""
