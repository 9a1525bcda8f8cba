"""Measures `lorarl dashboard --cluster` against its targets: many LoRARLJobs at the tests' API server.

    make tools
    python benchmarks/bench_cluster_dashboard.py --jobs 4000         some minutes on two cores

The jobs are spread over 200 namespaces, half of which a reader may see one by one. Their statuses are as long as those
of real jobs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from lorarl_trainer.threads import in_parallel  # noqa: E402
from support.cluster.client import Api, Object, path_of  # noqa: E402
from support.cluster.control_plane import Cluster, control_plane  # noqa: E402
from support.cluster.crds import CRDS, install_crds  # noqa: E402
from support.cluster.lorarljobs import lorarljob  # noqa: E402

NAMESPACES, MAKERS, SHOWS = 200, 8, 7
PHASES = ("Pending", "Running", "Succeeded", "Failed")
AT = "2026-01-01T00:00:00Z"
MESSAGE = (
    "couldn't assign flavors to pod set workers: insufficient unused quota for nvidia.com/gpu in flavor h100, 8 more"
)
TARGET_SECONDS = 1.0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--jobs", type=int, default=4000)
    jobs = arguments.parse_args().jobs
    with tempfile.TemporaryDirectory(prefix="lorarl-bench-") as folder, control_plane(Path(folder)) as cluster:
        install_crds(cluster, *CRDS)
        for number in range(NAMESPACES):
            namespace = {"metadata": {"name": f"team-{number}"}}
            cluster.api.create({"apiVersion": "v1", "kind": "Namespace", **namespace})
        account = {"metadata": {"name": "reader", "namespace": "default"}}
        cluster.api.create({"apiVersion": "v1", "kind": "ServiceAccount", **account})
        in_parallel(lambda number: make(cluster.api, number), range(jobs), MAKERS)
        in_parallel(lambda number: grant(cluster.api, f"team-{number}"), range(0, NAMESPACES, 2), MAKERS)
        print(f"| {jobs:,} jobs | measured | target |\n|---|---|---|")
        for row in measured(cluster, jobs):
            print(f"| {' | '.join(row)} |", flush=True)


def make(api: Api, number: int) -> None:
    """Create a job and write its status, as operator and trainer do."""
    namespace, name = f"team-{number % NAMESPACES}", f"job-{number}"
    api.create(lorarljob(namespace, name, labels={"kueue.x-k8s.io/queue-name": f"queue-{number % 3}"}))
    path = path_of("LoRARLJob", namespace, name, "status")
    api.request("PATCH", path, {"status": status(number)}, "application/merge-patch+json")


def status(number: int) -> Object:
    kinds = ("Running", "Checkpointed", "Reconciling", "Complete")
    condition = {"status": "False", "reason": "Queued", "message": MESSAGE, "lastTransitionTime": AT}
    return {
        "phase": PHASES[number % len(PHASES)],
        "conditions": [{"type": kind, **condition} for kind in kinds],
        "step": number % 200,
        "totalSteps": 200,
        "gpus": 8,
        "heldGpuSeconds": number * 10,
        "gpuSeconds": {"useful": number * 8, "lost": number, "startup": number, "unsaved": 0},
        "metrics": {"reward": number / 10_000, "kl": 0.01, "tokensPerSecond": 1234.5},
        "workers": {"attempt": 1, "pods": [f"job-{number}-worker-{pod}" for pod in range(8)]},
    }


def grant(api: Api, namespace: str) -> None:
    rbac = "rbac.authorization.k8s.io"
    meta = {"name": "reads", "namespace": namespace}
    rules = [{"apiGroups": ["lorarl.io"], "resources": ["lorarljobs"], "verbs": ["list"]}]
    api.create({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": "default"}
    ref = {"apiGroup": rbac, "kind": "Role", "name": "reads"}
    binding = {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": meta, "roleRef": ref}
    api.create({**binding, "subjects": [subject]})


def measured(cluster: Cluster, jobs: int) -> list[tuple[str, str, str]]:
    command = [str(ROOT / ".venv/bin/lorarl"), "dashboard", "--cluster", "--port", "0"]
    began = time.monotonic()
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        url = server.stdout.readline().partition("http://")[2].split("/")[0]
        try:
            admin, reader = cluster.tokens["admin"], cluster.service_account_token("default", "reader")
            while f"{jobs:,} jobs" not in get(url, admin):
                time.sleep(0.05)
            listed = time.monotonic() - began
            first, again = timed(lambda: get(url, reader)), typical(lambda: get(url, reader))
            peak = memory(server.pid)
            return [
                ("from the command to a page with all jobs", f"{listed:.1f} s", ""),
                (
                    f"a reader's first page, who may see {NAMESPACES // 2} namespaces one by one",
                    seconds(first),
                    target(),
                ),
                ("their page again", seconds(again), target()),
                ("the page of one who may see all", seconds(typical(lambda: get(url, admin))), target()),
                (
                    "the same, filtered and sorted",
                    seconds(typical(lambda: get(url, admin, "?text=job-9&sort=hours"))),
                    target(),
                ),
                ("the page of a job", seconds(typical(lambda: get(url, admin, "job/team-1/job-1/"))), target()),
                ("most memory", f"{peak / 1e6:.0f} MB", ""),
            ]
        finally:
            server.terminate()


def get(url: str, token: str, path: str = "") -> str:
    request = urllib.request.Request(f"http://{url}/{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


def timed(ask: Callable[[], Any]) -> float:
    began = time.monotonic()
    ask()
    return time.monotonic() - began


def typical(ask: Callable[[], Any]) -> float:
    return statistics.median(timed(ask) for _ in range(SHOWS))


def memory(pid: int) -> float:
    """The most that a process had in memory, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) * 1024


def seconds(value: float) -> str:
    return f"{value:.2f} s"


def target() -> str:
    return f"{TARGET_SECONDS:.0f} s"


if __name__ == "__main__":
    main()
