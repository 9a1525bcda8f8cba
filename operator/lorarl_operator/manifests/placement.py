"""The nodes that the pods of an attempt may, must or should use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Template = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def avoid(template: Template, nodes: Sequence[str]) -> None:
    """Keep a pod away from nodes, whatever affinity it has already.

    The terms of an affinity are alternatives, so each of them gets the condition. A node's name is a field, not a
    label: the label kubernetes.io/hostname may differ from it.
    """
    if not nodes:
        return
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    pod = template["spec"]
    affinity = pod.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    terms = (node_affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    kept = [term | {"matchFields": [*(term.get("matchFields") or []), *others]} for term in terms]
    pod["affinity"] = affinity | {"nodeAffinity": node_affinity | {_REQUIRED: {"nodeSelectorTerms": kept}}}
