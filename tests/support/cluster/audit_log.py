"""What a user has done, by the API server's own audit log (the platform is started with `audit=True`)."""

from __future__ import annotations

import json

from support.cluster.control_plane import Cluster

_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


def writes(cluster: Cluster, user: str, namespace: str) -> list[str]:
    """The writes of a user in a namespace, oldest first, each as `verb resource[/part] name`; Events and reads are left out."""
    found = []
    for line in cluster.audit_log.read_text().splitlines():
        if namespace not in line or user not in line:
            continue
        event = json.loads(line)
        about = event.get("objectRef", {})
        if event["user"]["username"] != user or about.get("namespace") != namespace or event["verb"] not in _WRITES:
            continue
        if about["resource"] == "events":
            continue
        # The name of what is created stands in the body, which the log leaves out.
        resource = "/".join(part for part in (about["resource"], about.get("subresource")) if part)
        found.append(f"{event['verb']} {resource} {about.get('name', '')}".rstrip())
    return found
