"""Logs as one JSON object per line. Images never get here: only ids, names, decisions and timings do."""

import logging
import sys
from datetime import UTC, datetime

from pydantic_core import to_json

# What every LogRecord has; anything else on it was given as `extra` and belongs into the line.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return to_json(line, serialize_unknown=True).decode()


def configure_logs(level: str) -> None:
    """Sends every logger of the process to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # Pillow warns of damaged metadata; without this such a warning would stand between the lines as plain text.
    logging.captureWarnings(True)
