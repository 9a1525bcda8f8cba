"""The rows of a place on disk, so that the first page comes before the store has been listed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lorarl_trainer.dashboard.row import Row

VERSION = 1
"""Changes with the fields of a row. An index of another version is made again."""


@dataclass(frozen=True)
class Index:
    """What was known of a place.

    Attributes:
        listed_at: when it was listed, in seconds since 1970; 0 if it never was.
        rows: by the path of the run.
        versions: of the files that each row was made from.
    """

    listed_at: float = 0.0
    rows: Mapping[str, Row] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def index_path(folder: Path, uri: str) -> Path:
    """Return the file for the index of a place."""
    return folder / f"{hashlib.sha256(uri.encode()).hexdigest()[:24]}.json"


def load_index(path: Path, uri: str) -> Index:
    """Return the index of a place; an empty one if there is none, or it is corrupt or of another version."""
    try:
        read = json.loads(path.read_bytes())
        if (read["version"], read["uri"], read["fields"]) != (VERSION, uri, list(Row._fields)):
            return Index()
        rows = {str(run): Row(*values) for run, (_, values) in read["runs"].items()}
        versions = {str(run): str(version) for run, (version, _) in read["runs"].items()}
        return Index(float(read["listed_at"]), rows, versions)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Index()


def save_index(path: Path, uri: str, index: Index) -> None:
    """Write the index of a place, for this user alone: whole or not at all.

    A disk that takes no files costs time at the next start, and nothing else.
    """
    runs = {run: (index.versions[run], row) for run, row in index.rows.items() if run in index.versions}
    content = {"version": VERSION, "uri": uri, "fields": Row._fields, "listed_at": index.listed_at, "runs": runs}
    staged = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(content, file, separators=(",", ":"))
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)
