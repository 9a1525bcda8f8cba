"""Measures the operator against its targets, on a real API server next to KubeRay's operator. kwok plays the pods.

make bench-operator                                                         all of it, 15 minutes on two cores
python benchmarks/bench_operator.py --burst 100 --held 500 --running 50     a quick look
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from support.cluster.client import Object, path_of  # noqa: E402
from support.cluster.crds import install_crds  # noqa: E402
from support.cluster.kwok import add_node  # noqa: E402
from support.cluster.lorarljobs import lorarljob, phase, report  # noqa: E402
from support.cluster.operator import Operator, operator, prepare, wait_leader  # noqa: E402
from support.cluster.platform import Platform, platform  # noqa: E402
from support.cluster.pods import WORKER  # noqa: E402
from support.cluster.processes import until  # noqa: E402

BASE_MB = 150
CREATORS = 8


@dataclass
class Row:
    """A row of the table: what was measured, its target, and every sample."""

    what: str
    target: str
    reached: str
    met: bool
    samples: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--burst", type=int, default=1000)
    arguments.add_argument("--held", type=int, default=5000)
    arguments.add_argument("--running", type=int, default=500)
    arguments.add_argument("--idle-samples", type=int, default=50)
    arguments.add_argument("--quiet-seconds", type=int, default=60)
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="lorarl-bench-") as folder, platform(Path(folder)) as p:
        install_crds(p.cluster, ROOT / "crds/lorarl.io_lorarljobs.yaml")
        for number in range(4):
            add_node(p.cluster, f"large-{number}", cpus=100_000, memory="400Ti", pods=50_000)
        bench = Bench(p, chosen)
        try:
            bench.run()
        except BaseException:
            for log in Path(folder).glob("bench-*.log"):
                print(f"--- {log.name}\n{log.read_text()[-2000:]}", file=sys.stderr)
            raise
        show(bench.rows, chosen)


class Bench:
    """All measurements in order. Each leaves what the next one needs."""

    def __init__(self, p: Platform, chosen: argparse.Namespace) -> None:
        self.p, self.chosen = p, chosen
        self.kubeconfig = prepare(p.cluster)
        self.rows: list[Row] = []

    def run(self) -> None:
        with operator(self.p.cluster, self.kubeconfig, "bench-first") as first:
            wait_leader(first)
            until(30, "the watches run", lambda: first.metric("lorarl_operator_watches") == 6)
            self.base = first.resident_bytes
            self.idle_latency()
            self.one_life(first)
            self.burst(first)
            self.hold(first)
        self.cold_start()

    def add(self, row: Row) -> None:
        self.rows.append(row)
        print(f"{row.what}: {row.reached} (target {row.target})", file=sys.stderr, flush=True)

    def idle_latency(self) -> None:
        """Measure one job at a time."""
        namespace = self.p.namespace("idle")
        seen: dict[str, float] = {}
        with watching(
            self.p, "RayJob", namespace, lambda one: seen.setdefault(one["metadata"]["name"], time.monotonic())
        ):
            latencies = []
            for number in range(self.chosen.idle_samples):
                name = f"idle-{number}"
                started = time.monotonic()
                self.p.api.create(lorarljob(namespace, name))
                until(10, f"RayJob {name}-1", partial(seen.__contains__, f"{name}-1"))
                latencies.append(seen[f"{name}-1"] - started)
                self.p.api.patch("LoRARLJob", name, {"spec": {"suspend": True}}, namespace)
                self.p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == "Suspended", seconds=60)
        p50, p99 = statistics.median(latencies), sorted(latencies)[int(len(latencies) * 0.99)]
        reached = f"p50 {p50 * 1000:.0f} ms, p99 {p99:.2f} s"
        samples = {"seconds": latencies}
        self.add(
            Row("CR created -> RayJob exists, idle", "p50 150 ms, p99 1 s", reached, p50 <= 0.15 and p99 <= 1, samples)
        )

    def _has_no_workers(self, namespace: str, rayjob: str) -> bool:
        return not self.p.pods(namespace, rayjob, WORKER)

    def one_life(self, replica: Operator) -> None:
        """Count the writes of a job's whole life, and measure how soon the workers of an ended job are gone."""
        namespace = self.p.namespace("life")
        gone, written = [], []
        for number in range(5):
            name, before = f"life-{number}", writes(replica)
            self.p.api.create(lorarljob(namespace, name))
            self.p.wait_running(namespace, f"{name}-1", seconds=60)
            self.p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == "Running", seconds=30)
            report(self.p.api, namespace, name, step=1, totalSteps=10)
            self.p.finish(namespace, f"{name}-1", "SUCCEEDED")
            ended = time.monotonic()
            until(30, "the workers are gone", partial(self._has_no_workers, namespace, f"{name}-1"))
            gone.append(time.monotonic() - ended)
            self.p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == "Succeeded", seconds=30)
            settled(replica)
            written.append(writes(replica) - before)
        samples = {"writes": written}
        self.add(
            Row("API writes by us over a job's whole life", "12", f"{max(written):.0f}", max(written) <= 12, samples)
        )
        self.add(
            Row("job ended -> its worker pods gone", "10 s", f"{max(gone):.1f} s", max(gone) <= 10, {"seconds": gone})
        )

    def burst(self, replica: Operator) -> None:
        """Create many jobs at once, and measure how fast KubeRay brings up their clusters meanwhile."""
        namespace = self.p.namespace("burst")
        count = self.chosen.burst
        made: dict[str, float] = {}
        ready: dict[str, float] = {}

        def cluster_seen(one: Object) -> None:
            if one.get("status", {}).get("state") == "ready":
                ready.setdefault(one["metadata"]["name"], time.monotonic())

        before = replica.metric("process_cpu_seconds_total")
        with (
            watching(
                self.p, "RayJob", namespace, lambda one: made.setdefault(one["metadata"]["name"], time.monotonic())
            ),
            watching(self.p, "RayCluster", namespace, cluster_seen),
        ):
            started = time.monotonic()
            self.create(namespace, "burst", count)
            created = time.monotonic() - started
            until(600, "all RayJobs exist", lambda: len(made) >= count)
            took = max(made.values()) - started
            cpu = replica.metric("process_cpu_seconds_total") - before
            until(1800, "KubeRay's clusters are up", lambda: len(ready) >= count)
        theirs = max(ready.values()) - started
        samples = {
            "created_seconds": created,
            "rayjob_seconds": sorted(at - started for at in made.values()),
            "kuberay_ready_seconds": sorted(at - started for at in ready.values()),
            "operator_cpu_seconds": cpu,
        }
        name = f"burst of {count:,} CRs -> all RayJobs exist"
        reached = f"{took:.0f} s, {theirs / took:.1f}x (the CRs themselves took {created:.0f} s)"
        target = f"60 s, 4x faster than KubeRay ({theirs:.0f} s)"
        self.add(Row(name, target, reached, took <= 60 and theirs / took >= 4, samples))

    def hold(self, replica: Operator) -> None:
        """Keep thousands of jobs at rest: measure memory, and expect no write."""
        namespace, held, running = "burst-2", self.chosen.held, self.chosen.running
        jobs = self.p.api.list("LoRARLJob")
        namespace = next(job["metadata"]["namespace"] for job in jobs if job["metadata"]["name"].startswith("burst-"))
        rest = [job["metadata"]["name"] for job in jobs if job["metadata"]["namespace"] == namespace][running:]
        until(600, "the burst runs", lambda: self.phases().get("Running", 0) >= min(self.chosen.burst, running))
        with ThreadPoolExecutor(CREATORS) as pool:
            list(
                pool.map(lambda name: self.p.api.patch("LoRARLJob", name, {"spec": {"suspend": True}}, namespace), rest)
            )
        self.create(self.p.namespace("held"), "held", held - len(jobs), suspend=True)
        until(900, "all are at rest", lambda: self.at_rest(replica))
        settled(replica)
        resident = replica.resident_bytes
        each = (resident - BASE_MB * 1e6) / held
        before = writes(replica)
        time.sleep(self.chosen.quiet_seconds)  # the measurement itself: writes while nothing changes
        written = writes(replica) - before
        samples = {"base_bytes": self.base, "resident_bytes": resident, "phases": self.phases(), "writes": written}
        reached = (
            f"{max(0, each) / 1000:.0f} KB a job (resident {resident / 1e6:.0f} MB, empty {self.base / 1e6:.0f} MB)"
        )
        self.add(Row(f"memory with {held:,} jobs", f"60 KB a job on {BASE_MB} MB", reached, each <= 60_000, samples))
        target = "0 writes a minute"
        self.add(
            Row(
                f"{held:,} jobs held, {running} running",
                target,
                f"{written:.0f} in {self.chosen.quiet_seconds} s",
                written == 0,
            )
        )
        self.fail_over(replica)

    def fail_over(self, leader: Operator) -> None:
        """Kill the leader: measure how soon the standby acts, and check that nothing is done twice."""
        namespace = self.p.namespace("after")
        before = {one["metadata"]["uid"] for one in self.p.api.list("RayJob")}
        with operator(self.p.cluster, self.kubeconfig, "bench-standby") as standby:
            until(30, "the standby is ready", lambda: standby.probe("/readyz")[0] == 200)
            leader.process.kill()
            died = time.monotonic()
            self.p.api.create(lorarljob(namespace, "after"))
            until(120, "the standby acts", lambda: self.p.api.get("RayJob", "after-1", namespace) is not None)
            took = time.monotonic() - died
            self.p.api.wait("LoRARLJob", "after", namespace, lambda job: phase(job) == "Running", seconds=120)
            settled(standby)
            after = {one["metadata"]["uid"] for one in self.p.api.list("RayJob")}
            fine = len(after - before) == 1 and not before - after
            made = standby.metric("lorarl_operator_api_writes_total", resource="rayjobs")
        reached = f"{took:.1f} s, {made:.0f} write to RayJobs"
        self.add(
            Row(
                "leader killed (-9) -> the next action",
                "20 s, nothing twice",
                reached,
                took <= 20 and fine and made == 1,
            )
        )

    def cold_start(self) -> None:
        """Start a process with thousands of jobs: measure how soon all are reconciled, and what it writes."""
        before = {one["metadata"]["uid"] for one in self.p.api.list("RayJob")}
        held = len(self.p.api.list("LoRARLJob"))
        started = time.monotonic()
        with operator(self.p.cluster, self.kubeconfig, "bench-cold") as replica:
            looked = "lorarl_operator_reconcile_seconds_count"
            until(
                180,
                "all are reconciled",
                lambda: replica.metric(looked) >= held and replica.metric("lorarl_operator_queue_depth") == 0,
            )
            took = time.monotonic() - started
            settled(replica)
            written, resident = writes(replica), replica.resident_bytes
            after = {one["metadata"]["uid"] for one in self.p.api.list("RayJob")}
        samples = {"writes": written, "resident_bytes": resident}
        reached = f"{took:.1f} s, {written:.0f} writes, resident {resident / 1e6:.0f} MB"
        fine = took <= 60 and before == after and written == 0
        self.add(Row(f"cold start with {held:,} jobs", "60 s, no RayJob twice, no write", reached, fine, samples))

    def create(self, namespace: str, prefix: str, count: int, **spec: Any) -> None:
        names = (f"{prefix}-{number}" for number in range(count))
        with ThreadPoolExecutor(CREATORS) as pool:
            list(pool.map(lambda name: self.p.api.create(lorarljob(namespace, name, **spec)), names))

    def phases(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for job in self.p.api.list("LoRARLJob"):
            counts[phase(job)] = counts.get(phase(job), 0) + 1
        return counts

    def at_rest(self, replica: Operator) -> bool:
        known = {labels["phase"]: count for labels, count in replica.samples("lorarl_jobs")}
        resting = {"Running", "Suspended", "Succeeded", "Failed"}
        return sum(known.values()) >= self.chosen.held and all(
            name in resting for name, count in known.items() if count
        )


def writes(replica: Operator) -> float:
    """Return the number of writes about jobs, without the lease and Events."""
    samples = replica.samples("lorarl_operator_api_writes_total")
    return sum(value for labels, value in samples if labels["resource"] not in ("leases", "events"))


def settled(replica: Operator) -> None:
    """Return when nothing was written for 5 s and the audit after the start is done."""
    last, since = writes(replica), time.monotonic()

    def still() -> bool:
        nonlocal last, since
        if (current := writes(replica)) != last or replica.metric("lorarl_operator_queue_depth"):
            last, since = current, time.monotonic()
        return time.monotonic() - since > 5

    until(120, "the operator is at rest", still)


@contextmanager
def watching(p: Platform, kind: str, namespace: str, see: Callable[[Object], object]) -> Iterator[None]:
    """Pass every change of a kind to `see`, from its own thread."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for change, one in p.api.watch(kind, namespace, seconds=3600):
                if stop.is_set():
                    return
                if change in ("ADDED", "MODIFIED"):  # an ERROR has no name; the next watch begins with all there are
                    see(one)

    threading.Thread(target=watch, daemon=True).start()
    p.api.request("GET", path_of(kind, namespace))
    try:
        yield
    finally:
        stop.set()


def show(rows: list[Row], chosen: argparse.Namespace) -> None:
    print(f"\n| {'what':<48} | {'target':<40} | reached |\n|---|---|---|")
    for row in rows:
        print(f"| {row.what:<48} | {row.target:<40} | {row.reached}{'' if row.met else '  **MISSED**'} |")
    path = ROOT / f"benchmarks/results/operator-{datetime.date.today():%Y-%m-%d}.json"
    described = {
        "date": f"{datetime.datetime.now(datetime.UTC):%FT%TZ}",
        "cores": os.cpu_count(),
        "arguments": vars(chosen),
    }
    path.write_text(json.dumps({**described, "rows": [vars(row) for row in rows]}, indent=1) + "\n")
    print(f"\nraw samples: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
