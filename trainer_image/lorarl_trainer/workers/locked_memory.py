"""How much memory a process may lock. RDMA needs that: NCCL pins what the network reads and writes.

The limit is that of the node's container runtime. A pod cannot raise it, and NCCL's error names neither.
"""

from __future__ import annotations

import resource

_LEAST_BYTES = 1 << 30
"""NCCL's buffers and those of the network's driver, for some dozen connections."""


def allow_locking() -> str:
    """Raise this process's limit as far as it may, and return a line that says how much it can lock now."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return described(hard)


def described(limit: int) -> str:
    """Return the line about a limit in bytes, as `getrlimit` gives it."""
    if limit == resource.RLIM_INFINITY:
        return "cluster.rdma: this pod may lock memory without a limit (ulimit -l)."
    told = f"this pod may lock {limit // 1024:,} KiB of memory (ulimit -l)"
    if limit >= _LEAST_BYTES:
        return f"cluster.rdma: {told}."
    return (
        f"warning: cluster.rdma: {told}, which is too little for RDMA. NCCL may fail with `Cannot allocate memory`. "
        "Set LimitMEMLOCK=infinity for the container runtime of this node."
    )
