"""Who did what, from the API server's audit log, in the terms of RBAC."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from support.cluster.client import Object

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, order=True)
class Right:
    """A verb on a resource; `resource` holds a subresource too, as in `lorarljobs/status`."""

    group: str
    resource: str
    verb: str


def account(namespace: str, name: str) -> str:
    """The user that a ServiceAccount is."""
    return f"system:serviceaccount:{namespace}:{name}"


def requests(log: Path, user: str) -> Iterator[Object]:
    """All requests of a user about objects, as the log has them."""
    yield from (event for event in logged(log) if event["user"]["username"] == user and "objectRef" in event)


def logged(log: Path) -> Iterator[Object]:
    """All requests that the log has whole: its last line may be being written."""
    with log.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def used(log: Path, user: str) -> set[Right]:
    """Every right that a user's requests needed. An apply that creates needs `create` too, beside its verb `patch`."""
    found = set()
    for event in requests(log, user):
        made_by_apply = event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201
        found |= {
            _right(event["objectRef"], verb) for verb in {event["verb"], "create" if made_by_apply else event["verb"]}
        }
    return found


def refused(log: Path, user: str) -> list[str]:
    """Every request of a user that was forbidden."""
    forbidden = (event for event in requests(log, user) if event.get("responseStatus", {}).get("code") == 403)
    return [f"{event['verb']} {event['requestURI']}: {event['responseStatus'].get('message')}" for event in forbidden]


def writes(log: Path, user: str, namespace: str) -> list[str]:
    """The accepted writes of a user in a namespace, oldest first, as `verb resource[/part] name`.

    Events are left out, and so are dry runs, which store nothing.
    """
    found = []
    for event in requests(log, user):
        about = event["objectRef"]
        if (
            about.get("namespace") == namespace
            and about["resource"] != "events"
            and event["verb"] in WRITES
            and "dryRun=All" not in event["requestURI"]
            and _done(event)
        ):
            right = _right(about, event["verb"])
            found.append(f"{right.verb} {right.resource} {about.get('name', '')}")
    return found


def granted(rules: Iterable[Object]) -> set[Right]:
    """Every right in the rules of a Role."""
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _done(event: Object) -> bool:
    return int(event.get("responseStatus", {}).get("code", 0)) < 400


def _right(reference: Object, verb: str) -> Right:
    resource = "/".join(part for part in (reference["resource"], reference.get("subresource")) if part)
    return Right(reference.get("apiGroup", ""), resource, verb)
