"""A training that hangs: only the API server's record of the trainer's last report shows that."""

from __future__ import annotations

import time

from support.cluster.lorarljobs import condition, lorarljob, phase, report
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

DEADLINE = 3
"""Seconds. The API server records whole ones."""


def test_an_attempt_that_reports_nothing_is_ended(kuberay_platform: Platform, replica: Operator) -> None:
    p, namespace = kuberay_platform, kuberay_platform.namespace("stalls")
    p.api.create(lorarljob(namespace, "hangs", progressDeadlineSeconds=DEADLINE, backoffLimit=0))
    p.api.wait("LoRARLJob", "hangs", namespace, lambda job: phase(job) == "Running")
    began, step = time.monotonic(), 0

    def trained_for_longer_than_the_deadline() -> bool:
        nonlocal step
        report(p.api, namespace, "hangs", step=(step := step + 1))
        return time.monotonic() - began > DEADLINE + 2

    until(20, "steps for longer than the deadline", trained_for_longer_than_the_deadline)
    job = p.api.get("LoRARLJob", "hangs", namespace)
    assert job is not None
    assert phase(job) == "Running", "news of steps keep it alive"

    job = p.api.wait("LoRARLJob", "hangs", namespace, lambda job: phase(job) == "Failed")
    assert condition(job, "Failed")["reason"] == "Stalled"
    assert (
        f"nothing for progressDeadlineSeconds, {DEADLINE} s, since step {step}" in condition(job, "Failed")["message"]
    )
    p.api.delete("LoRARLJob", "hangs", namespace)
