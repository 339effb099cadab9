"""Settings: flags before environment (CONFGATE_…) before file (TOML) before defaults.

A value that is not allowed stops the start, and the message names the key as it was written, the value, and what
is allowed.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from service.errors import SettingsError

ENV_PREFIX = "CONFGATE_"
Device = Literal["auto", "cuda", "cpu"]
IMAGE_FORMATS = ("png", "jpeg", "webp", "gif", "tiff", "bmp")

# Read by the commands that talk to a service, not by `confgate serve`.
OTHER_VARIABLES = ("CONFIG", "API_KEY")


def _word(value: object) -> object:
    return str(value).lower() if isinstance(value, bool | str) else value


class Settings(BaseSettings):
    """Each field is a flag of `confgate serve`, a CONFGATE_ variable and a key of the settings file."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    models: Path = Field(Path("models"), description="Folder with the bundles to serve: MODELS/NAME/VERSION.")
    default_model: str | None = Field(
        None,
        description="Model for requests that name none; unless given, the one named in the file MODELS/default_model, "
        "or the first by name.",
    )
    state: Path | None = Field(
        None, description="Folder that keeps the thresholds an operator sets; without one a restart forgets them."
    )
    watch: bool = Field(False, description="Load models by themselves when their folder changes.")
    watch_seconds: float = Field(
        2.0, ge=0.01, le=3600, description="Time between two looks at the models folder, with watch."
    )
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    published_on: str | None = Field(
        None, description="Address at which a container's port is published, where that is not the host's own."
    )
    api_keys: str | None = Field(
        None, description="Lines of API keys (NAME:ROLE:SHA256, see confgate keys new) with spaces between them."
    )
    api_keys_file: Path | None = Field(None, description="File with one such line per key; # begins a comment.")
    allow_anonymous: Annotated[Literal["auto", "true", "false"], BeforeValidator(_word)] = Field(
        "auto",
        description="Answer requests without a key: true, false, or auto (from this machine, while no client has one).",
    )
    allowed_hosts: str = Field(
        "auto",
        description="Host names that requests may use, with spaces between them (ports are ignored); * allows all. "
        "auto: on loopback localhost, 127.0.0.1, [::1] and the service's own address, elsewhere all.",
    )
    allowed_origins: str | None = Field(
        None,
        description="Origins (https://app.example.org) of other sites' web pages that may send requests other than "
        "GET, with spaces between them; * allows all.",
    )
    device: Device = Field("auto", description="Where to run: cuda, cpu, or auto (cuda if it is available).")
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="Threads that compute one batch. 0: for each model by how long it computes, up to all usable CPUs.",
    )
    inference_workers: int = Field(
        0,
        ge=0,
        le=256,
        description="Batches of a model that are computed at the same time. 0: one where threads is given or on a GPU, "
        "otherwise by how long the model computes, up to all usable CPUs.",
    )
    decode_threads: int = Field(
        0, ge=0, le=256, description="Threads that decode images; 0 means all usable CPUs, at most 8."
    )
    capture_dir: Path | None = Field(
        None, description="Folder that keeps a sample of the refused images; without one no image is ever kept."
    )
    capture_rate: float = Field(
        0.1, gt=0, le=1, description="Share of the refused images that are kept, if there is a folder for them."
    )
    capture_max_mb: int = Field(500, ge=1, le=1_000_000, description="Most megabytes kept; the oldest go first.")
    capture_max_images: int = Field(10_000, ge=1, le=10_000_000, description="Most images kept; the oldest go first.")
    capture_days: float = Field(30.0, gt=0, le=3650, description="Days after which a kept image is deleted.")
    capture_side: int = Field(
        256, ge=8, le=4096, description="Longest side, in pixels, at which an image is kept; larger ones are shrunk."
    )
    max_batch: int = Field(
        32, ge=1, le=4096, description="Most images in one inference batch; less where a larger one is no faster."
    )
    batch_mb: int = Field(
        48,
        ge=1,
        le=1_000_000,
        description="Most megabytes that a graph takes on a CPU, beside its weights, for all batches computed at "
        "the same time; batches of large images hold fewer than max_batch.",
    )
    open_perturbed: Annotated[Literal["first-use", "load"], BeforeValidator(_word)] = Field(
        "first-use",
        description="When the graph for preprocessed scores takes its memory: first-use (it is checked when the model "
        "is loaded, and opened again by the first request that needs it) or load.",
    )
    max_queue_images: int = Field(
        512, ge=1, le=1_000_000, description="Most images that wait in one queue; beyond that requests get 429."
    )
    max_images: int = Field(64, ge=1, le=10_000, description="Most images in one request.")
    max_body_bytes: int = Field(20_000_000, ge=1, le=2_000_000_000, description="Most bytes in one request.")
    # The upper bound is where Pillow itself begins to refuse.
    max_pixels: int = Field(
        40_000_000, ge=1, le=89_000_000, description="Most pixels of one image; larger ones are not decoded."
    )
    max_pixel_passes: int = Field(
        400_000_000,
        ge=1,
        le=100_000_000_000,
        description="Most pixels of one image times the scans of a progressive JPEG; more are not decoded.",
    )
    formats: str = Field(
        "png,jpeg,webp,gif",
        description=f"Image formats that are accepted, with commas between them; there are {', '.join(IMAGE_FORMATS)}.",
    )
    bodies_mb: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Most megabytes of request bodies in flight; beyond that large ones get 429. 0 means an eighth of "
        "the memory, at most 512.",
    )
    decoding_mb: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Most megabytes that large images take while they are decoded. 0 means a quarter of the memory, at "
        "most 1024.",
    )
    decode_workers: int = Field(
        0, ge=0, le=256, description="Processes that decode large images; 0 means all usable CPUs, at most 4."
    )
    decode_cpu_seconds: int = Field(
        5, ge=1, le=600, description="CPU time for decoding one image in such a process; then it is stopped."
    )
    max_requests: int = Field(
        1024, ge=1, le=1_000_000, description="Most requests for predictions in flight; beyond that they get 429."
    )
    max_connections: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Most open connections; 0 means half of what the limit of open files allows, at most 4096.",
    )
    request_timeout_ms: int = Field(
        10_000, ge=1, le=600_000, description="Time for an answer, unless X-Request-Timeout-Ms says otherwise."
    )
    body_timeout_ms: int = Field(10_000, ge=1, le=600_000, description="Time for a request's head, and then its body.")
    metrics_cache_ms: int = Field(
        1000, ge=0, le=60_000, description="How old an answer of /metrics may be: it is written at most that often."
    )
    write_timeout_ms: int = Field(
        10_000, ge=1, le=600_000, description="Time in which a client must read its answer, or 64 KiB more of it."
    )
    # Longer than load balancers keep theirs: the side that opened a connection should close it.
    keep_alive_seconds: int = Field(
        75, ge=1, le=3600, description="Time after which a connection without a new request is closed."
    )
    drain_seconds: float = Field(
        20.0,
        ge=0,
        le=3600,
        description="Time after SIGTERM by which the process has ended, at least 1; requests in flight have until 2 s "
        "before, or half of it.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level to log.")
    access_log: bool = Field(True, description="Write one log line for each request.")

    @model_validator(mode="after")
    def _a_request_fits_the_queue(self) -> Self:
        if self.max_images > self.max_queue_images:
            raise ValueError(
                f"max_images ({self.max_images}) must not be more than max_queue_images ({self.max_queue_images})"
            )
        return self

    @field_validator("formats")
    @classmethod
    def _known_formats(cls, value: str) -> str:
        unknown = [name for name in _names(value) if name not in IMAGE_FORMATS]
        if unknown or not _names(value):
            raise ValueError(f"expected some of {', '.join(IMAGE_FORMATS)} with commas between them")
        return value

    @property
    def accepted_formats(self) -> tuple[str, ...]:
        """The setting `formats` as a list, in the order of IMAGE_FORMATS."""
        return tuple(name for name in IMAGE_FORMATS if name in _names(self.formats))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic-settings'
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # `load_settings` reads the environment and the file itself, to know where a wrong value came from.
        return (init_settings,)


def _names(value: str) -> list[str]:
    return value.replace(",", " ").lower().split()


def load_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, file: Path | None = None
) -> Settings:
    """Settings from flags (None means not given), the environment, and a file."""
    from_file = _read_file(file) if file is not None else {}
    values: dict[str, Any] = {}
    written_as: dict[str, str] = {}
    for name in Settings.model_fields:
        flag, variable = flags.get(name), environ.get(ENV_PREFIX + name.upper())
        if flag is not None:
            values[name], written_as[name] = flag, "--" + name.replace("_", "-")
        elif variable is not None:
            values[name], written_as[name] = variable, ENV_PREFIX + name.upper()
        elif name in from_file:
            values[name], written_as[name] = from_file[name], f"{name} in {file}"
    unknown = sorted(set(from_file) - set(Settings.model_fields))
    if unknown:
        raise SettingsError(f"{file}: {unknown[0]} is no setting; allowed: {', '.join(Settings.model_fields)}")
    try:
        return Settings(**values)
    except ValidationError as error:
        raise SettingsError("\n".join(_explained(problem, written_as) for problem in error.errors())) from error


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """CONFGATE_ variables that set nothing: perhaps misspelt, perhaps Kubernetes' own for a service's links."""
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields} | {
        ENV_PREFIX + name for name in OTHER_VARIABLES
    }
    return sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in known)


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the settings file {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"the settings file {file} is not TOML: {error}") from error


def _explained(problem: Any, written_as: Mapping[str, str]) -> str:
    if not problem["loc"]:
        return str(problem["msg"]).removeprefix("Value error, ")
    name = str(problem["loc"][0])
    return f"{written_as.get(name, name)}: {problem['input']!r} is not allowed: {problem['msg']}"
