"""An API server that throttles, fails, forgets, hangs, breaks off and contradicts: jobs end as they would have, later.

LORARL_CHAOS_FAULT_MINUTES and LORARL_CHAOS_SEED choose for how long, and which faults.
"""

from __future__ import annotations

import os
import time

import pytest

from support.cluster.api_faults import EVERY_FAULT, ApiFaults
from support.cluster.api_proxy import api_proxy
from support.cluster.leftovers import ends_clean
from support.cluster.lives import SCRIPTS, live
from support.cluster.mirror import mirror
from support.cluster.operator import ACCOUNT, SYSTEM, prepare
from support.cluster.platform import Platform
from support.cluster.replicas import replicas

MINUTES = float(os.environ.get("LORARL_CHAOS_FAULT_MINUTES") or 10)
SEED = int(os.environ.get("LORARL_CHAOS_SEED") or 1)
JOBS_A_MINUTE = 5


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_jobs_end_as_they_should_whatever_the_api_server_does(p: Platform) -> None:
    namespace = p.namespace("faults")
    prepare(p.cluster)
    faulty = ApiFaults(SEED)
    began = time.monotonic()
    jobs = max(len(SCRIPTS), round(JOBS_A_MINUTE * MINUTES))

    def part_of_time() -> float:
        passed = (time.monotonic() - began) / (60 * MINUTES)
        faulty.healed = passed > 1
        return passed + 1 / jobs

    with mirror(p.api, namespace) as seen, api_proxy(p.cluster) as proxy:
        proxy.intercept = faulty.intercept
        kubeconfig = proxy.kubeconfig(p.cluster, "faults", p.cluster.service_account_token(SYSTEM, ACCOUNT))
        with replicas(p.cluster, kubeconfig, "here", "there") as kept:
            faults = live(p, seen, jobs, part_of_time, patience=300)
            lived = time.monotonic() - began
            faults += ends_clean(p.api, seen)
    print(
        f"\n{sum(faulty.struck.values())} faults ({dict(faulty.struck)}), {kept.starts} starts, "
        f"{jobs} jobs, {lived:.0f} s, seed {SEED}"
    )
    assert not faults + seen.violations, "\n".join(faults + seen.violations)
    assert faulty.struck.keys() == EVERY_FAULT
