"""What the /v1 routes answer, as OpenAPI shows it."""

from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, Field

from service.model.gate import Reason
from service.model.manifest import Default, Figure, GraphName, HashedFile, Input, Provenance
from service.model.pairs import ExpectedRefusals, JointHistogram
from service.model.references import Display, Histogram, Typicality
from service.model.scores import ScoreName
from service.model.session import ActiveDevice, Device
from service.serving.override_store import ExpectedShares, GateChangeRecord
from service.web.schemas import Answer, Share

# An error in the document of a route; FastAPI would call its type application/json.
PROBLEM: dict[str, Any] = {
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemResponse"}}}
}

FileName = Annotated[
    str | None,
    Field(
        max_length=255,
        description="The file's name as it was sent, or null if it has none; only in answers to multipart/form-data.",
    ),
]


class Prediction(Answer):
    """One image's answer. A refused image is an answer too: `accepted` is false, and `reason` says why."""

    class_id: int = Field(description="Index of the most likely class in the model's labels.")
    label: str = Field(description="Name of the most likely class.")
    probabilities: dict[str, Share] = Field(
        description="Softmax by label, in the model's order; with top_k only the largest, largest first."
    )
    confidence: Share = Field(
        description="The model's confidence c in this input; of a plain classifier, its largest softmax."
    )
    confidence_preprocessed: Share | None = Field(
        description="The same after input preprocessing; null unless preprocess=true or its score was asked for."
    )
    typicality: Share | None = Field(
        description="A p-value: the share of the images this model gets right that look at least as unusual as this "
        "one (0.005: 1 in 200). Null where the model has no such score."
    )
    certainty: Share = Field(description="How sure the model is of its class: the largest probability.")
    accepted: bool = Field(description="Whether the gate lets the image pass. This is the field to act on.")
    reason: Reason | None = Field(
        description="Why it does not: `unfamiliar`, unlike the images that the model was made for; or `unsure`, of a "
        "class that the model cannot tell. Null where it does."
    )
    in_distribution: bool = Field(
        description="False for what is unfamiliar. Where one score decides alone, the same as `accepted`."
    )
    score: ScoreName = Field(description="The score that was compared with the threshold.")
    score_value: Share = Field(
        description="Its value for this image. Energy and max_logit are shown relative to the calibration images: 0.5 "
        "is their median, 0.25 and 0.75 are their quartiles."
    )
    policy: str = Field(description="The policy that set the threshold.")
    threshold: Share = Field(description="What the score must exceed.")
    certainty_threshold: Share | None = Field(
        description="What certainty must exceed as well; null where one score decides alone. 0 refuses nothing."
    )
    file_name: FileName = None


class ProblemItem(Answer):
    """Why something failed."""

    type: str = Field(description="Machine-readable kind.", examples=["urn:confgate:problem:invalid-image"])
    title: str
    status: int
    detail: str = Field(description="What happened and what to do about it.")
    index: int | None = Field(default=None, description="Which image of the request, counted from 0.")


class FailedItem(Answer):
    """Takes a prediction's place where partial=true was asked for and one image failed."""

    error: ProblemItem
    file_name: FileName = None


class PredictResponse(Answer):
    id: str = Field(description="The request's id, also in X-Request-Id.")
    model: str
    version: int
    predictions: list[Prediction | FailedItem] = Field(description="One for each image, in their order.")


class PredictRequest(BaseModel):
    """The JSON form of a request."""

    images: list[Annotated[str, Field(json_schema_extra={"format": "byte"})]] = Field(
        min_length=1, description="Encoded image files, each as base64 or as a data URL with base64."
    )


class ProblemResponse(ProblemItem):
    """RFC 9457."""

    request_id: str
    file_name: FileName = None


class PolicyInfo(Answer):
    threshold: Share = Field(description="As answers show it.")
    threshold_raw: float = Field(description="As it is compared: on the score's unbounded scale.")
    expected_rejection_rate: Share
    expected_rejection_interval: tuple[Share, Share] | None = Field(
        description="Where the rate of images like the calibration images lies, with 95 % probability."
    )
    detection_error: Share | None
    n: int = Field(description="Calibration images behind these numbers.")
    how: str


class ScoreInfo(Answer):
    epsilon: float | None
    temperature: float | None
    display: Display | None = Field(
        description="Answers show sigmoid((score − location) / scale); null: sigmoid(score)."
    )
    typicality: Typicality | None = Field(description="Quantiles of the calibration images, for score typicality.")
    policies: dict[str, PolicyInfo]
    reference: Histogram


class PairInfo(Answer):
    """Two thresholds: an image must exceed both. One that is 0, and null as it is compared, refuses nothing."""

    familiarity: Share = Field(description="What typicality must exceed; at or below it an image is unfamiliar.")
    familiarity_raw: float | None = Field(description="As it is compared: on the score's unbounded scale.")
    certainty: Share = Field(description="What certainty must exceed; at or below it a familiar image is unsure.")
    certainty_raw: float | None = Field(description="As it is compared: on the score's unbounded scale.")
    expected: ExpectedRefusals = Field(description="What it refuses of the calibration images, with 95 % intervals.")
    n: int = Field(description="Calibration images behind these numbers.")
    how: str


class PairsInfo(Answer):
    policies: dict[str, PairInfo]
    joint: JointHistogram = Field(description="The calibration images by familiarity and certainty.")


class DeviceInfo(Answer):
    requested: Device
    active: ActiveDevice


class SessionInfo(Answer):
    largest_batch: int = Field(
        description="Most images in a batch: max_batch, or on a CPU fewer if more would be no faster or take more "
        "memory than batch_mb."
    )
    open: bool = Field(description="False for a graph that the first request for it will open.")


class ParallelismInfo(Answer):
    """How batches are computed, as set or as chosen when the model was loaded."""

    threads: int = Field(
        description="Threads that compute a batch; where chosen, as few as one while other batches run beside it."
    )
    workers: int = Field(description="Batches that are computed at the same time.")


class ActiveGate(Answer):
    """What decides for requests that name neither score nor policy."""

    score: ScoreName
    policy: str = Field(description="A policy of the bundle, or `custom`: an operator's own threshold or pair of them.")
    threshold: Share = Field(description="As answers show it; of a pair, that on familiarity.")
    threshold_raw: float | None = Field(
        description="As it is compared: on the score's unbounded scale; null where it refuses nothing."
    )
    certainty_threshold: Share | None = Field(description="That of a pair on certainty; null for a single score.")
    certainty_threshold_raw: float | None = Field(description="As it is compared; null where it refuses nothing.")
    expected_rejection_rate: Share
    expected_refusals: ExpectedShares = Field(description="The same by the reason of the refusal.")
    expected_rejection_margin: Share = Field(
        description="How far off that may be; not 0 only for a custom threshold, which lies in a histogram's bucket."
    )
    n: int = Field(description="Calibration images behind these numbers.")
    set_by_operator: bool = Field(description="False where it is the bundle's default.")


class GateInfo(ActiveGate):
    """The same for operators."""

    model: str
    version: int
    by: str | None = Field(description="Whose key set it; null where it is the bundle's default.")
    at: AwareDatetime | None
    note: str | None
    ignored: str | None = Field(description="Why something that was set is not in force; null where all is well.")


class GateHistory(Answer):
    changes: list[GateChangeRecord]


class VersionInfo(Answer):
    version: int
    created: AwareDatetime
    provenance: Provenance
    device: DeviceInfo
    parallelism: ParallelismInfo
    input: Input
    max_batch: int | None = Field(
        description="Most images in one run of the model; 1 for a graph that cannot take several. Null: as many as the "
        "service allows."
    )
    sessions: dict[GraphName, SessionInfo] = Field(description="How each graph is run.")
    labels: tuple[str, ...]
    temperature: float
    scores: dict[ScoreName, ScoreInfo]
    pairs: PairsInfo | None = Field(description="Policies with two thresholds; null where the bundle has none.")
    default: Default = Field(description="Score and policy that the bundle ships with; a pair where score is null.")
    active: ActiveGate
    evaluation: tuple[Figure, ...]
    graphs: dict[GraphName, HashedFile]
    external_data: tuple[HashedFile, ...]


class ModelInfo(Answer):
    name: str
    default_version: int
    versions: list[VersionInfo]


class ModelsResponse(Answer):
    default_model: str | None = Field(description="Used where a request names none; null while nothing is loaded.")
    models: list[ModelInfo]
