"""Masks the values of the mounted Secrets in all that a process of a job's pod prints or reports.

The end of a container's log is in the job's status and Events, which more people may read than the Secrets. The values
are known here, so they are masked exactly, wherever they stand. What has only the form of a credential is masked by
`lorarl_api.redaction`, which the operator uses too.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from lorarl_api.redaction import HIDDEN, names_a_secret, redacted

SECRETS_DIR_VARIABLE = "LORARL_SECRETS_DIR"
"""Environment variable: the folder of the mounted Secrets. Each container of a job that runs lorarl has it."""
_SHORTEST = 6
"""A shorter value would be found in ordinary words."""
_PUBLIC = re.compile(
    r"REGION|ENDPOINT|URL|URI|ACCOUNT_NAME|USERNAME|CLIENT_ID|TENANT|BUCKET|HOST|PORT|PATH|FILE|STYLE|SKIP"
)
"""Keys of a Secret whose values are no secrets, and which messages need."""
_FRESH_SECONDS = 30.0
"""The kubelet replaces the values of a Secret that was changed."""


class Masks:
    """The values to mask: those of the mounted Secrets, and of environment variables with the name of a secret."""

    def __init__(self) -> None:
        """Read the values."""
        self._read_at = 0.0
        self._values: re.Pattern[str] | None = None

    def masked(self, text: str) -> str:
        """`text` without the values."""
        if time.monotonic() - self._read_at > _FRESH_SECONDS or self._values is None:
            found = sorted({value for value in _values() if len(value) >= _SHORTEST}, key=len, reverse=True)
            self._values = re.compile("|".join(map(re.escape, found)) or r"(?!)")
            self._read_at = time.monotonic()
        return self._values.sub(HIDDEN, text)


class MaskedOutput:
    """A text stream in whose place nothing else changes."""

    def __init__(self, stream: TextIO, masks: Masks) -> None:
        """Mask all that is written to `stream`."""
        self._stream, self._masks = stream, masks

    def write(self, text: str) -> int:
        """Write the text without the values; return its length."""
        self._stream.write(self._masks.masked(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own."""
        return getattr(self._stream, name)


_masks = Masks()


def without_secrets(text: str) -> str:
    """A message for the job's status, without the mounted values and without what looks like a credential."""
    return redacted(_masks.masked(text)) if os.environ.get(SECRETS_DIR_VARIABLE) else text


def mask_output() -> None:
    """Mask what this process prints from now on, in a pod. On a person's own machine nothing changes."""
    if not os.environ.get(SECRETS_DIR_VARIABLE) or isinstance(sys.stdout, MaskedOutput):
        return
    streams: Any = sys
    streams.stdout, streams.stderr = MaskedOutput(sys.stdout, _masks), MaskedOutput(sys.stderr, _masks)


def _values() -> Iterator[str]:
    for name, value in os.environ.items():
        if names_a_secret(name):
            yield from _parts(value)
    for file in _files(Path(os.environ.get(SECRETS_DIR_VARIABLE, ""))):
        if _PUBLIC.search(file.name) and not names_a_secret(file.name):
            continue
        try:
            yield from _parts(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for secret in folder.iterdir():
            if secret.is_dir():
                yield from (file for file in secret.iterdir() if file.is_file() and not file.name.startswith("."))


def _parts(value: str) -> Iterator[str]:
    """The value, and its lines: a traceback or a log may have one of them."""
    value = value.strip()
    yield value
    if value.startswith("{"):
        try:
            fields = json.loads(value)
        except ValueError:
            fields = {}
        for name, text in fields.items() if isinstance(fields, dict) else ():
            if isinstance(text, str) and names_a_secret(name):
                yield from (text, json.dumps(text)[1:-1], *_lines(text))
    else:
        yield from _lines(value)


def _lines(text: str) -> Iterator[str]:
    yield from (line.strip() for line in text.splitlines() if not line.startswith("-----"))
