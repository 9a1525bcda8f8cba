"""The CRD of schedules in a real API server: it refuses what Python refuses, with the same hints."""

from __future__ import annotations

import json

import pytest

from support.cluster.control_plane import Cluster
from unit.contract.manifests import Case, Changes
from unit.contract.schedule_cases import CASES, REFUSED, VALUES, schedule


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_rule_is_refused_with_the_field_and_the_fix(cluster: Cluster, case: Case) -> None:
    done = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(schedule(case.bad)))
    assert done.returncode and case.field in done.stderr and case.hint in done.stderr, done.stderr
    cluster.must("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(schedule(case.good)))


@pytest.mark.parametrize(("changes", "field"), REFUSED)
def test_a_value_that_no_field_takes_is_refused(cluster: Cluster, changes: Changes, field: str) -> None:
    done = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(schedule(changes)))
    assert done.returncode and field in done.stderr, done.stderr


def test_what_only_the_operator_sees_is_accepted_here(cluster: Cluster) -> None:
    for changes, _ in VALUES:
        cluster.must("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(schedule(changes)))


def test_a_schedule_has_the_defaults_of_a_job_and_may_change(cluster: Cluster) -> None:
    stored = json.loads(cluster.must("apply", "-o", "json", "-f", "-", stdin=json.dumps(schedule())))
    spec = stored["spec"]
    assert (spec["timeZone"], spec["concurrencyPolicy"], spec["continueFrom"]) == ("Etc/UTC", "Allow", "none")
    assert spec["successfulJobsHistoryLimit"] == 3 and spec["failedJobsHistoryLimit"] == 1
    assert spec["template"]["spec"]["adapter"]["rank"] == 32 and "metadata" in spec["template"]
    changes: Changes = {"spec.template.spec.adapter.rank": 8, "spec.schedule": "@daily", "spec.suspend": True}
    cluster.must("apply", "-f", "-", stdin=json.dumps(schedule(changes)))
    cluster.must("delete", "lrsch", "smallest")
