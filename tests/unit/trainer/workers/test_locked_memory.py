"""A worker with RDMA raises its limit of locked memory as far as it may, and says what it is."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

from lorarl_trainer.workers.locked_memory import described

STARTS = """
import resource, sys
from lorarl_trainer.workers.worker import Rank, Worker
from unit.trainer.planning.jobs import gpu_job

hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
resource.setrlimit(resource.RLIMIT_MEMLOCK, (min(hard, 4096) if hard != -1 else 4096, hard))
Worker(gpu_job(*sys.argv[1:]), Rank(0, 1, 0, None, None))
print(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == hard)
"""


def test_a_limit_is_told_with_the_mend_where_it_is_too_low() -> None:
    assert described(resource.RLIM_INFINITY) == "cluster.rdma: this pod may lock memory without a limit (ulimit -l)."
    assert described(64 << 30) == "cluster.rdma: this pod may lock 67,108,864 KiB of memory (ulimit -l)."
    low = described(8 << 20)
    assert low.startswith("warning: cluster.rdma: this pod may lock 8,192 KiB of memory (ulimit -l), which is too")
    assert low.endswith("Set LimitMEMLOCK=infinity for the container runtime of this node.")


def test_a_worker_raises_it_only_for_rdma() -> None:
    def started(*changes: str) -> list[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", STARTS, *changes]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert started() == ["False"]
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    assert started("cluster.rdma.resourceName=rdma/hca") == [described(hard), "True"]
