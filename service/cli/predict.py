"""`confgate predict`: asks a running service about image files, and shows its answers as a table.

confgate predict cat.png dog.jpg
"""

import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from service.errors import ConfgateError

TIMEOUT_SECONDS = 60
# Less than a service takes by default: 64 files (--max-images) and 20 MB (--max-body-bytes).
FILES_PER_REQUEST = 32
BYTES_PER_REQUEST = 16_000_000
HEADINGS = ("file", "label", "probability", "confidence", "accepted", "reason", "score > threshold")


class ClientError(ConfgateError):
    """The service could not be reached, or refused the request."""


def predict(
    files: Annotated[list[Path], typer.Argument(help="Image files.", exists=True, dir_okay=False)],
    url: Annotated[str, typer.Option(help="Where the service listens.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Which model; the service's default unless given.")] = None,
    version: Annotated[int | None, typer.Option(help="Which version; the highest unless given.")] = None,
    policy: Annotated[str | None, typer.Option(help="Which threshold policy.")] = None,
    score: Annotated[str | None, typer.Option(help="Which score is compared with the threshold.")] = None,
    preprocess: Annotated[bool, typer.Option(help="Gate on the input-preprocessed score.")] = False,
    top_k: Annotated[int | None, typer.Option(help="Show only the k largest probabilities (--json).")] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="Your key, if the service asks for one.", envvar="CONFGATE_API_KEY", show_envvar=True),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="For programs: the service's own answer. Of several requests it has all predictions, in order, "
            "and the id of the first.",
        ),
    ] = False,
) -> None:
    """Ask a running service about image files, as many as you like.

    A request has up to 32 files and 16 MB; more files take several requests, which one version of the model answers.
    """
    query = {"model": model, "version": version, "policy": policy, "score": score, "top_k": top_k}
    if preprocess:
        query["preprocess"] = "true"
    outcome = predict_files(url, files, query, api_key)
    typer.echo(outcome.json if as_json else outcome.table())
    if outcome.failed:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The service's answer to a list of files."""

    files: Sequence[Path]
    json: str

    @property
    def predictions(self) -> list[dict[str, Any]]:
        predictions: list[dict[str, Any]] = json.loads(self.json)["predictions"]
        return predictions

    @property
    def failed(self) -> bool:
        return any("error" in item for item in self.predictions)

    def table(self) -> str:
        rows: list[tuple[str, ...]] = [HEADINGS]
        rows += [_row(file, item) for file, item in zip(self.files, self.predictions, strict=True)]
        widths = [max(len(row[i]) for row in rows if len(row) > i) for i in range(len(HEADINGS))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
        )


def predict_files(url: str, files: Sequence[Path], query: Mapping[str, Any], api_key: str | None = None) -> Outcome:
    """Sends the files in as many requests as they need; a file that is no image is an error in its row."""
    first, *others = _parts(files)
    text = _ask(url, first, query, api_key)
    if not others:
        return Outcome(files, text)
    answer = json.loads(text)
    # The version that answered first answers all: a new one may be loaded meanwhile.
    same = {**query, "model": answer["model"], "version": answer["version"]}
    for part in others:
        answer["predictions"] += json.loads(_ask(url, part, same, api_key))["predictions"]
    return Outcome(files, json.dumps(answer, ensure_ascii=False, separators=(",", ":")))


def _parts(files: Sequence[Path]) -> list[list[Path]]:
    """The files in order, in parts that fit into a request; a file that is larger than that is a part by itself."""
    parts: list[list[Path]] = [[]]
    room = BYTES_PER_REQUEST
    for file in files:
        size = file.stat().st_size
        if parts[-1] and (len(parts[-1]) == FILES_PER_REQUEST or size > room):
            parts.append([])
            room = BYTES_PER_REQUEST
        parts[-1].append(file)
        room -= size
    return parts


def _ask(url: str, files: Sequence[Path], query: Mapping[str, Any], api_key: str | None) -> str:
    """The service's answer to one multipart request."""
    asked = {name: str(value) for name, value in query.items() if value is not None}
    boundary = uuid.uuid4().hex
    request = urllib.request.Request(
        f"{url.rstrip('/')}/v1/predict?{urllib.parse.urlencode({**asked, 'partial': 'true'})}",
        data=_form(files, boundary),
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}", **_credentials(api_key)},
        method="POST",
    )
    # Not through a proxy that the environment may name: the service is usually local.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=TIMEOUT_SECONDS) as response:
            answer: bytes = response.read()
            return answer.decode()
    except urllib.error.HTTPError as error:
        with error:
            raise ClientError(_explanation(error)) from error
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ClientError(f"no answer from {url}: {reason}. Is `confgate serve` running there?") from error


def _credentials(api_key: str | None) -> dict[str, str]:
    if api_key is None:
        return {}
    if not (api_key.isascii() and api_key.isprintable()):
        raise ClientError("the API key has characters that no key has: check that it was copied whole")
    return {"Authorization": f"Bearer {api_key}"}


def _form(files: Sequence[Path], boundary: str) -> bytes:
    parts = []
    for file in files:
        disposition = f'Content-Disposition: form-data; name="image"; filename="{_header_safe(file.name)}"'
        parts.append(f"--{boundary}\r\n{disposition}\r\n\r\n".encode() + file.read_bytes() + b"\r\n")
    return b"".join([*parts, f"--{boundary}--\r\n".encode()])


def _header_safe(name: str) -> str:
    """A file's name without what would break the header: control characters, quotes, backslashes, no UTF-8."""
    return "".join("_" if c in '"\\' or not c.isprintable() else c for c in name)


def _explanation(error: urllib.error.HTTPError) -> str:
    text = error.read().decode("utf-8", "replace")
    try:
        problem = json.loads(text)
        return f"{error.code} {problem['title']}: {problem['detail']} (request {problem['request_id']})"
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}: {text[:200]}"


def _row(file: Path, item: Mapping[str, Any]) -> tuple[str, ...]:
    if "error" in item:
        return (str(file), f"error: {item['error']['detail']}")
    return (
        str(file),
        item["label"],
        f"{item['probabilities'][item['label']]:.4f}",
        f"{item['confidence']:.4f}",
        "yes" if item["accepted"] else "no",
        item["reason"] or "",
        f"{_comparisons(item)} ({item['policy']})",
    )


def _comparisons(item: Mapping[str, Any]) -> str:
    """What was compared, each with the sign that decided: rounded numbers may look equal."""
    sign = ">" if item["in_distribution"] else "<="
    first = f"{item['score']} {item['score_value']:.4f} {sign} {item['threshold']:.4f}"
    if item["certainty_threshold"] is None:
        return first
    sure = item["accepted"] if item["in_distribution"] else item["certainty"] > item["certainty_threshold"]
    return f"{first}, certainty {item['certainty']:.4f} {'>' if sure else '<='} {item['certainty_threshold']:.4f}"
