"""Changes to a job's manifest, by dotted paths."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def changed(job: Object, changes: Object) -> Object:
    """Make `changes` (dotted paths in its spec -> values; None removes) in place, and return the manifest."""
    for path, value in changes.items():
        *folders, last = path.split(".")
        place = job["spec"]
        for folder in folders:
            place = place.setdefault(folder, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return job
