"""The share of the cores that one of several processes of pytest uses, with all that it starts."""

from __future__ import annotations

import os
from functools import cache


@cache
def take_share() -> int:
    """Bind this process to its share of the cores if pytest runs several (`-n`); return how many cores it may use.

    Threads of torch wait for each other in busy loops, so two runs on the same cores would slow each other down.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None:
        cores = sorted(os.sched_getaffinity(0))
        number, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        os.sched_setaffinity(0, cores[number % count :: count] or cores)
    return len(os.sched_getaffinity(0))
