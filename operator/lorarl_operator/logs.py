"""Log lines for people, or one JSON object per line for collectors.

Manifests, headers and environment variables are never logged.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_ABOUT: ContextVar[dict[str, str | int]] = ContextVar("about")
_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (RFC 3339, UTC), level, logger, message, and the exception if there is one.

    A line about a job also has its namespace, job, uid and attempt, as far as they are known.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= _ABOUT.get({})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


@contextmanager
def about(**fields: str | int) -> Iterator[None]:
    """Add fields to each line that is logged within."""
    token = _ABOUT.set(_ABOUT.get({}) | fields)
    try:
        yield
    finally:
        _ABOUT.reset(token)


def also(**fields: str | int) -> None:
    """Add fields until the innermost `about` ends."""
    _ABOUT.set(_ABOUT.get({}) | fields)


def set_up(form: str, level: str) -> None:
    """Log to standard error in a form (`text` or `json`), from a level (`debug`, `info`, ...) up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_FORMAT))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    if level != "debug":
        # Our own lines and metrics have what matters of kopf.
        handler.addFilter(_is_news)
        logging.getLogger("kopf").setLevel(logging.WARNING)
        logging.getLogger("asyncio").setLevel(logging.WARNING)


def _is_news(record: logging.LogRecord) -> bool:
    """Filter out kopf's repeated attempts at a watch. Without permission it logs an error every 5 s per kind."""
    if not record.name.startswith("kopf."):
        return True
    message = record.getMessage()
    return "will retry" not in message or "attempt #1 " in message
