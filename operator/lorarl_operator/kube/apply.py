"""The body of server-side apply: JSON that is also valid YAML."""

from __future__ import annotations

import json
import re
from typing import Any

APPLY_TYPE = "application/apply-patch+yaml; charset=utf-8"
"""Content type. The parameter keeps the official Kubernetes client from serialising the text again."""
_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")


def apply_body(manifest: dict[str, Any]) -> bytes:
    """The body of the request.

    JSON escapes emojis and similar characters as surrogate pairs, which the API server's YAML parser does not know.
    """
    return _PAIR.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), json.dumps(manifest)).encode()
