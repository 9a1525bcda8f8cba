"""OpenMP's threads, with which torch computes on the host."""

from __future__ import annotations


def openmp(threads: int) -> dict[str, str]:
    """Return the variables of a process that computes with so many threads."""
    return {
        # vLLM turns torch.set_num_threads into a no-op, so the number must be set from the start.
        "OMP_NUM_THREADS": str(threads),
        # A thread that waits for another soon sleeps. By default it spins for milliseconds, on the core that the other
        # may need beside other work. Beside one busy process, a step on a CPU took ten times as long then.
        "GOMP_SPINCOUNT": "10000",
    }
