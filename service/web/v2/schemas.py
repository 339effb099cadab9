"""What the /v2 routes take and answer, as OpenAPI shows it."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.web.schemas import Answer, Share


class ErrorResponse(Answer):
    error: str = Field(description="What was wrong, what was expected and what to do.")


class ServerMetadata(Answer):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Answer):
    name: str
    datatype: str
    shape: list[int] = Field(description="-1 stands for the number of images.")


class ModelMetadata(Answer):
    name: str
    versions: list[str] = Field(description="All that are served; the highest answers where none is named.")
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(Answer):
    name: str
    ready: bool


class IndexEntry(Answer):
    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str = Field(description="Why it is not served, or why its last load was refused; empty if all is well.")


class InputParameters(Answer):
    binary_data_size: int | None = Field(default=None, ge=1, description="Bytes of this input behind the JSON.")


class InputTensor(Answer):
    name: Literal["image"]
    shape: list[int] = Field(description="[N, height, width, 3] for UINT8, [N] for BYTES.")
    datatype: Literal["UINT8", "BYTES"]
    parameters: InputParameters | None = None
    data: list[Any] | None = Field(
        default=None,
        description="Numbers, flat or nested; for BYTES image files as base64 or data URLs. Not with binary data.",
    )


class OutputParameters(Answer):
    binary_data: bool = Field(default=False, description="Behind the JSON instead of in it.")
    classification: int | None = Field(
        default=None, ge=1, description='Only of probabilities: the k largest, each as "value:index:label".'
    )


class AskedOutput(Answer):
    name: Literal[
        "class_id",
        "label",
        "probabilities",
        "confidence",
        "in_distribution",
        "accepted",
        "reason",
        "certainty",
        "typicality",
        "confidence_preprocessed",
    ]
    parameters: OutputParameters | None = None


class AskedParameters(Answer):
    policy: str | None = Field(
        default=None, description="Which policy: a pair unless score is given; the model's default unless given."
    )
    score: str | None = Field(
        default=None, description="A score that decides alone; what the model's default compares unless given."
    )
    preprocess: bool = Field(
        default=False,
        description="Also compute the input-preprocessed score, and gate on it unless score, or a pair, is given.",
    )
    binary_data_output: bool = Field(default=False, description="All outputs behind the JSON.")


class InferenceRequest(Answer):
    """The JSON of a request; binary data may follow it."""

    id: str | None = Field(default=None, max_length=256)
    model_name: str | None = Field(default=None, description="If given, it must be the path's.")
    model_version: str | None = None
    parameters: AskedParameters | None = None
    inputs: list[InputTensor] = Field(min_length=1, max_length=1)
    outputs: list[AskedOutput] | None = Field(default=None, description="All there are, unless given.")


class AnswerParameters(Answer):
    score: str
    policy: str
    threshold: Share = Field(description="What the score must exceed.")
    certainty_threshold: Share | None = Field(
        default=None, description="What certainty must exceed as well; left out where one score decides alone."
    )


class BinarySize(BaseModel):
    binary_data_size: int


class OutputTensor(Answer):
    name: str
    datatype: Literal["INT64", "BYTES", "FP32", "BOOL"]
    shape: list[int]
    parameters: BinarySize | None = None
    data: list[Any] | None = None


class InferenceResponse(Answer):
    """The JSON of an answer; binary data may follow it."""

    model_name: str
    model_version: str
    id: str = Field(description="The request's; if it had none, X-Request-Id.")
    parameters: AnswerParameters = Field(description="What decided.")
    outputs: list[OutputTensor]


class IndexRequest(Answer):
    ready: bool = Field(default=False, description="List only what is served.")


class RepositoryParameters(Answer):
    version: int | str | None = Field(default=None, description="Only this version; all unless given.")
    unload_dependents: bool = Field(default=False, description="Of unload; accepted because clients send it.")


class RepositoryRequest(Answer):
    parameters: RepositoryParameters | None = None
