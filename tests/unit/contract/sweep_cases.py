"""Sweeps that are refused, and why. The API server refuses them too, unless Python alone can see it."""

from __future__ import annotations

from typing import Any

from unit.contract.manifests import Case, Changes, changed, manifest

AXIS = {"path": "spec.adapter.rank", "values": [8, 16]}


def sweep(changes: Changes | None = None) -> dict[str, Any]:
    """The smallest valid sweep with `changes`, whose jobs a cluster can run."""
    job = manifest({"spec.data.eval": {"uri": "file:out/eval.jsonl"}})
    job["spec"]["checkpoint"] |= {"keepBest": {}}
    smallest = {
        "apiVersion": "lorarl.io/v1alpha1",
        "kind": "LoRARLSweep",
        "metadata": {"name": "smallest"},
        "spec": {"template": {"spec": job["spec"]}, "over": [AXIS]},
    }
    return changed(smallest, changes or {})


def _axes(*sizes: int) -> list[dict[str, Any]]:
    return [{"path": f"spec.trainer.f{'x' * n}", "values": list(range(size))} for n, size in enumerate(sizes)]


_ONE = {"set": {"spec.adapter.rank": 8}}
VALUES = [
    ({"spec.over": _axes(11, 5, 2)}, "spec.over: got 110 combinations, expected at most 100"),
    ({"spec.over": None, "spec.trials": [{"set": {"spec.suspend": True}}]}, "set suspend of the sweep"),
    ({"spec.template.spec.suspend": True}, "Remove it; to begin later, set suspend of the sweep."),
    ({"spec.over": None, "spec.trials": [{"set": {"metadata.name": "a"}}]}, r"spec.trials[0].set: got the key"),
    ({"spec.over": [{"path": "spec.trainer.seed", "values": [1, "1"]}]}, "several trials named smallest-seed-1"),
]
"""What only Python and the operator see: the API server's rules cannot read values of any type."""
CASES = [
    Case("both", {"spec.trials": [_ONE]}, {"spec.over": None, "spec.trials": [_ONE]}, "spec.over", "Keep one of them"),
    Case("neither", {"spec.over": None}, {}, "spec.over", "Keep one of them"),
    Case("a path twice", {"spec.over": [AXIS, AXIS]}, {}, "spec.over", "Put all values of a path into one entry"),
    Case(
        "suspend over",
        {"spec.over": [{"path": "spec.suspend", "values": [True]}]},
        {"spec.suspend": True},
        "spec.over",
        "Set suspend of the sweep",
    ),
    Case(
        "stopping by nothing",
        {"spec.stopping": {"median": {}}},
        {"spec.stopping": {"median": {}}, "spec.objective": {"metric": "reward"}},
        "spec.objective",
        "Add objective",
    ),
    *(
        Case(
            f"stopping by {rules or 'no rule'}",
            {"spec.stopping": {rule: {} for rule in rules}, "spec.objective": {"metric": "reward"}},
            {"spec.stopping": {"halving": {"factor": 4}}, "spec.objective": {"metric": "reward"}},
            "spec.stopping",
            "Set one of them",
        )
        for rules in ((), ("median", "halving"))
    ),
    Case(
        "best of none",
        {"spec.objective": {"metric": "best"}, "spec.template.spec.checkpoint.keepBest": None},
        {"spec.objective": {"metric": "best"}},
        "spec.objective",
        "name evalScore, reward, kl or tokensPerSecond",
    ),
    Case(
        "no evaluation",
        {"spec.objective": {"metric": "evalScore"}, "spec.template.spec.data.eval": None},
        {"spec.objective": {"metric": "evalScore"}},
        "spec.objective",
        "name reward, kl or tokensPerSecond",
    ),
]
