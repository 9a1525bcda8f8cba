"""The CRD of sweeps in a real API server: it refuses what Python refuses, with the same hints."""

from __future__ import annotations

import copy
import json

import pytest

from support.cluster.control_plane import Cluster
from unit.contract.manifests import Case, changed
from unit.contract.sweep_cases import CASES, VALUES, sweep


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_rule_is_refused_with_the_field_and_the_fix(cluster: Cluster, case: Case) -> None:
    done = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(sweep(case.bad)))
    assert done.returncode and case.field in done.stderr and case.hint in done.stderr, done.stderr
    cluster.must("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(sweep(case.good)))


def test_values_have_any_type_and_the_template_no_defaults(cluster: Cluster) -> None:
    values = [1, 1e-5, "a", True, ["q_proj"], {"type": "rloo"}]
    wanted = sweep({"spec.over": [{"path": "spec.algorithm", "values": values}], "metadata.name": "any-type"})
    stored = json.loads(cluster.must("apply", "-o", "json", "-f", "-", stdin=json.dumps(wanted)))
    assert stored["spec"]["over"][0]["values"] == values
    assert stored["spec"]["template"]["spec"] == wanted["spec"]["template"]["spec"]
    assert stored["status"] == {"observedGeneration": -1, "conditions": []}
    for changes in (
        {"spec.over": None, "spec.trials": [{"set": {"spec.a": 1}}]},
        {"spec.template.metadata": {"labels": {"a": "b"}}},
    ):
        done = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(changed(copy.deepcopy(wanted), changes)))
        assert "is immutable. Apply another sweep" in done.stderr
    for objective, said in (
        ({"metric": "best"}, ""),
        ({"metric": "reward"}, "objective may change only while"),
        (None, "objective"),
    ):
        done = cluster.kubectl("apply", "-f", "-", stdin=json.dumps(changed(wanted, {"spec.objective": objective})))
        assert said in done.stderr and bool(done.returncode) == bool(said), done.stderr
    cluster.must("delete", "lrs", "any-type")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec.template.spec.adapter.rank": 0}, "spec.template.spec.adapter.rank: Invalid value"),
        ({"spec.template.spec.adapter.ranck": 8}, "ranck"),
        ({"spec.parallelism": 101}, "spec.parallelism: Invalid value"),
        ({"spec.objective": {"metric": "loss"}}, '"best", "evalScore", "reward", "kl", "tokensPerSecond"'),
        ({"metadata.name": "a" * 43}, "have at most 42 characters"),
        ({"spec.over": [{"path": "metadata.name", "values": [1]}]}, "spec.over[0].path: Invalid value"),
    ],
)
def test_kubectl_apply_refuses_early(cluster: Cluster, changes: dict[str, object], said: str) -> None:
    done = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(sweep(changes)))
    assert done.returncode and said in done.stderr, done.stderr


def test_what_only_the_operator_sees_is_accepted_here(cluster: Cluster) -> None:
    for changes, _ in VALUES:
        cluster.must("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(sweep(changes)))
