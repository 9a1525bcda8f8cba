"""The chat template in a folder of tokenizer files, read without a tokenizer. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEMPLATE_FILE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"


def read_chat_template(read: Callable[[str], bytes | None]) -> str | None:
    """Return a folder's chat template as Transformers takes it: of chat_template.jinja, else of tokenizer_config.json.

    `read` returns the content of a file of the folder, or None. None: the folder has no template that can be read.
    """
    if (content := read(TEMPLATE_FILE)) is not None:
        return content.decode(errors="replace")
    try:
        found: Any = json.loads(read(TOKENIZER_CONFIG) or b"{}").get("chat_template")
        if isinstance(found, list):
            found = {each["name"]: each["template"] for each in found}.get("default")
    except (ValueError, AttributeError, TypeError, KeyError):
        return None
    return found if isinstance(found, str) else None


def folder_chat_template(folder: Path) -> str | None:
    """Return the chat template of a folder on this machine, see `read_chat_template`."""

    def read(name: str) -> bytes | None:
        file = folder / name
        return file.read_bytes() if file.is_file() else None

    return read_chat_template(read)


def same_template(one: object, other: object) -> bool:
    """Return whether two templates are one, whatever ends their files."""
    return one == other or (isinstance(one, str) and isinstance(other, str) and one.strip() == other.strip())
