"""An operator whose CRDs of sweeps and schedules are newer than itself. `test_skew.py` has that of jobs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from support.cluster.lorarljobs import condition
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until
from support.cluster.schedules import create_due, job_of, lorarlschedule
from support.cluster.sweeps import lorarlsweep

SECONDS = 60.0
EXTRA = {"type": "object", "default": {}, "properties": {"a": {"type": "integer", "default": 1}}}


@pytest.fixture(name="p")
def _p(kuberay_platform: Platform, replica: Operator) -> Platform:
    return kuberay_platform


@pytest.fixture
def newer(p: Platform) -> Iterator[str]:
    """Definitions with more fields that have defaults, and a namespace."""
    namespace, before = p.namespace("makers"), {}
    for plural in ("lorarlschedules", "lorarlsweeps"):
        name = f"{plural}.lorarl.io"
        definition = p.api.get("CustomResourceDefinition", name)
        assert definition is not None
        before[name] = definition["spec"]["versions"]
        versions = copy.deepcopy(before[name])
        spec: dict[str, Any] = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        spec["extra"] = EXTRA
        if plural == "lorarlschedules":
            spec["template"]["properties"]["spec"]["properties"]["extra"] = EXTRA
        p.api.patch("CustomResourceDefinition", name, {"spec": {"versions": versions}})
    probe = {"apiVersion": "lorarl.io/v1alpha1", "metadata": {"name": "probe", "namespace": namespace}}

    def served() -> bool:
        schedule = lorarlschedule(namespace) | {"metadata": probe["metadata"]}
        sweep = lorarlsweep(namespace, "probe")
        made = [p.api.create(one | {"spec": one["spec"] | {"suspend": True}}) for one in (schedule, sweep)]
        p.cluster.must("delete", "lrsch,lrs", "probe", "-n", namespace)
        return all("extra" in one["spec"] for one in made)

    until(SECONDS, "the new defaults are served", served)
    yield namespace
    p.cluster.must("delete", "lrsch,lrs,lrj", "--all", "-n", namespace)
    for name, versions in before.items():
        p.api.patch("CustomResourceDefinition", name, {"spec": {"versions": versions}})


@pytest.mark.long  # `tests/unit/operator/test_served_schema.py` and its neighbours are quick.
def test_new_defaults_stop_no_schedule(p: Platform, newer: str) -> None:
    create_due(p.api, lorarlschedule(newer, concurrencyPolicy="Forbid"))
    made = p.api.wait("LoRARLJob", job_of(9), newer, lambda job: bool(job.get("status")), seconds=SECONDS)
    assert "extra" not in made["spec"]
    noted = p.api.wait(
        "LoRARLSchedule", "nightly", newer, lambda one: one["status"].get("lastJob") == job_of(9), seconds=SECONDS
    )
    assert noted["spec"]["template"]["spec"]["extra"] == {"a": 1}
    assert noted["status"]["phase"] == "Running"


@pytest.mark.long  # `tests/unit/operator/test_served_schema.py` and its neighbours are quick.
def test_new_defaults_stop_no_sweep(p: Platform, newer: str) -> None:
    p.api.create(lorarlsweep(newer, "sums"))
    p.api.wait("LoRARLSweep", "sums", newer, lambda one: one["status"].get("active") == 2, seconds=SECONDS)
    # Its own status has brought the operator the new field by now.
    p.api.patch("LoRARLSweep", "sums", {"spec": {"parallelism": 3}}, newer)
    p.api.wait("LoRARLSweep", "sums", newer, lambda one: one["status"].get("active") == 3, seconds=SECONDS)
    # One that someone has set is not ignored, and the message does not say to delete the sweep.
    p.api.patch("LoRARLSweep", "sums", {"spec": {"extra": {"a": 2}}}, newer)
    failed = p.api.wait("LoRARLSweep", "sums", newer, lambda one: one["status"]["phase"] == "Failed", seconds=SECONDS)
    message = condition(failed, "Failed")["message"]
    assert "spec.extra" in message and "upgrade the operator" in message and "delete" not in message
