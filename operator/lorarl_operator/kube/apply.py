"""What server-side apply sends: JSON that is YAML too."""

from __future__ import annotations

import json
import re
from typing import Any

APPLY_TYPE = "application/apply-patch+yaml; charset=utf-8"
"""Content type. The parameter keeps Kubernetes' official client from writing the text anew."""
_PAIR = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")


def apply_body(manifest: dict[str, Any]) -> bytes:
    """The body of the request. The API server's YAML knows no pairs of surrogates, by which JSON escapes emojis and the like."""
    return _PAIR.sub(lambda pair: str(json.loads(f'"{pair[0]}"')), json.dumps(manifest)).encode()
