"""Measures what Kubernetes and KubeRay cost on a GPU.

It compares the step of bench_gpu.py bare and in pods on the same GPU. It shows where the seconds of a start go, and
those from a deleted worker pod to the next step.

make bench-gpu-cluster JOB=job.yaml KUBECONFIG=...    all of it at 0.5B and 7B, then the tables in docs/gpu-cluster.md
python benchmarks/bench_gpu_cluster.py --parts bare                              needs no cluster
python benchmarks/bench_gpu_cluster.py --parts pods --sizes 7b --job job.yaml    one part, added to --out
python benchmarks/bench_gpu_cluster.py --render benchmarks/results/gpu-cluster-DATE.json

JOB is any LoRARLJob that runs on this cluster: its `cluster` and its checkpoint's place are used. The cluster is a node
on this machine, from which pods mount the models and the folder of compiled code.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(ROOT / folder) for folder in ("benchmarks", "crds", "trainer_image", "operator", "tools", "tests")]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from bench_gpu import write  # noqa: E402
from side_by_side import bare, ours  # noqa: E402
from side_by_side.systems import last_object, model_folder  # noqa: E402
from side_by_side.work import Work  # noqa: E402

PARTS = ("bare", "pods", "lost", "killed")
CACHES = ("cold", "warm")
DOCUMENT = ROOT / "docs/gpu-cluster.md"
LOST_AFTER_STEPS, LOST_STEPS = 2, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts",
        nargs="+",
        default=PARTS,
        choices=PARTS,
        help="lost: delete a worker pod, at the last size; killed: at once",
    )
    parser.add_argument("--sizes", nargs="+", default=["0.5b", "7b"], help="model shapes: 0.5b, 7b (tiny for a trial)")
    parser.add_argument("--caches", nargs="+", default=CACHES, choices=CACHES, help="cold: nothing is compiled yet")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of a warm run")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument("--gpus", type=int, default=1, help="0 for a trial on a CPU")
    parser.add_argument("--job", type=Path, metavar="FILE", help="a LoRARLJob that runs on this cluster")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--kubeconfig", type=Path, default=os.environ.get("KUBECONFIG"))
    parser.add_argument(
        "--set", action="append", default=[], metavar="PATH=VALUE", help="change the job, bare and in pods"
    )
    parser.add_argument("--models", type=Path, help="folder for the models  [default: shared memory if there is room]")
    parser.add_argument("--compiled", type=Path, default=Path(tempfile.gettempdir(), "lorarl-bench-compiled"))
    parser.add_argument(
        "--out", type=Path, default=ROOT / f"benchmarks/results/gpu-cluster-{datetime.date.today():%Y-%m-%d}.json"
    )
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="write the tables of docs/gpu-cluster.md from raw figures"
    )
    chosen = parser.parse_args()
    if chosen.render:
        from side_by_side.cluster_report import render

        render(json.loads(chosen.render.read_text()), DOCUMENT, chosen.render.resolve().relative_to(ROOT))
        return
    if set(chosen.parts) - {"bare"} and not (chosen.job and chosen.kubeconfig):
        parser.error("--parts pods and lost need --job, and --kubeconfig or KUBECONFIG")
    sys.exit(Bench(chosen).run())


class Bench:
    """The parts in order. The others run even if one fails. What --out has of other parts is kept."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen, self.started = chosen, time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="lorarl-bench-"))
        self.models = chosen.models or model_folder()
        self.failed: list[str] = []
        self.result: dict[str, Any] = (
            json.loads(chosen.out.read_text()) if chosen.out.exists() else {"commands": [], "runs": []}
        )
        self.result |= {"date": f"{datetime.datetime.now(datetime.UTC):%FT%TZ}", "commit": ours.commit(ROOT)}
        self.result["commands"].append(" ".join(["python", *sys.argv]))

    def run(self) -> int:
        command = [sys.executable, "-m", "side_by_side.prepare", str(self.models), *self.chosen.sizes]
        prepared = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        self.result |= last_object(prepared.splitlines())
        for size in self.chosen.sizes:
            for part in ("bare", "pods"):
                for caches in self.chosen.caches if part in self.chosen.parts else ():
                    self.attempt(part, size, caches)
        for part in ("lost", "killed"):
            if part in self.chosen.parts:
                self.attempt(part, self.chosen.sizes[-1], "warm")
        for failure in self.failed:
            print(f"FAILED: {failure}", file=sys.stderr)
        print(f"raw figures: {self.chosen.out}; output: {self.folder}")
        return 1 if self.failed else 0

    def attempt(self, part: str, size: str, caches: str) -> None:
        print(f"{time.monotonic() - self.started:5.0f} s  {part} {size} {caches}", file=sys.stderr, flush=True)
        about = {"part": part, "size": size, "caches": caches}
        try:
            made = {"date": self.result["date"][:10], "commit": self.result["commit"]}
            run = {**about, **made, **getattr(self, part)(size, caches)}
        except (subprocess.SubprocessError, OSError, ValueError, AssertionError) as error:
            self.failed.append(f"{part} {size} {caches}: {error}")
            print(f"         failed: {error}", file=sys.stderr, flush=True)
            return
        others = [one for one in self.result["runs"] if any(one[key] != about[key] for key in about)]
        self.result["runs"] = [*others, run]
        write(self.chosen.out, self.result)
        stages = ", ".join(f"{name} {seconds:.1f}" for name, seconds in run["stages"].items())
        print(f"         first token after {run['first_token_seconds']:.1f} s: {stages}", file=sys.stderr, flush=True)

    def bare(self, size: str, caches: str) -> dict[str, Any]:
        folder = self.folder / f"bare-{size}-{caches}"
        job = self.job(size, folder, caches)
        run = bare.run(folder, job, Work(), self.compiled("bare", size, caches), self.chosen.set)
        print(
            "         end: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in run["end"].items()),
            file=sys.stderr,
        )
        return {**run, "first_token_seconds": sum(run["stages"].values()), "steps": self.measured(run["steps"], caches)}

    def pods(self, size: str, caches: str) -> dict[str, Any]:
        with self.in_cluster("pods", size, caches, self.job(size, self.folder, caches)) as job:
            run = job.run()
        return {**run, "steps": self.measured(run["steps"], caches)}

    def lost(self, size: str, caches: str) -> dict[str, Any]:
        return self.without_a_worker("lost", size, caches)

    def killed(self, size: str, caches: str) -> dict[str, Any]:
        return self.without_a_worker("killed", size, caches, "--grace-period=1")

    def without_a_worker(self, part: str, size: str, caches: str, *deletion: str) -> dict[str, Any]:
        job = self.job(size, self.folder, caches)
        job["spec"]["trainer"]["steps"] = LOST_STEPS
        job["spec"]["checkpoint"] |= {"every": 1, "resume": "Auto"}
        with self.in_cluster(part, size, caches, job) as running:
            return dict(running.lose_a_worker(LOST_AFTER_STEPS, *deletion))

    def job(self, size: str, folder: Path, caches: str) -> dict[str, Any]:
        """Return the job of bench_gpu.py with a built-in reward, which needs no file of this checkout."""
        steps = self.chosen.warmup + self.chosen.steps if caches == "warm" else 2
        job = ours.manifest(self.models / size, folder, Work(), self.chosen.gpus, steps)
        job["spec"]["reward"] = {"type": "exact"}
        return job

    def measured(self, steps: list[Any], caches: str) -> list[Any]:
        """Return the steps that count: none if something had to be compiled."""
        if caches == "cold":
            return []
        if len(steps) != (expected := self.chosen.warmup + self.chosen.steps):
            raise ValueError(f"{len(steps)} steps were seen, expected {expected}")
        return steps[self.chosen.warmup :]

    def compiled(self, part: str, size: str, caches: str) -> Path:
        """Return a folder for compiled code, which the trainer's user in pods may write to."""
        folder = Path(self.chosen.compiled) / f"{part}-{size}"
        if caches == "cold":
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    @contextmanager
    def in_cluster(self, part: str, size: str, caches: str, job: dict[str, Any]) -> Iterator[Any]:
        """Run the job in the cluster under a new name, so that it resumes from no checkpoint."""
        from lorarl_api.load import load_job
        from side_by_side.pods import JobInCluster, manifest
        from support.cluster.kubectl import real_cluster

        name = f"bench-{part}-{size.replace('.', '')}-{caches}-{time.time():.0f}"
        changed = yaml.safe_load(self.chosen.job.read_text())
        made = manifest(job, changed, name, self.models, self.compiled("pods", size, caches))
        folder = self.folder / name
        folder.mkdir()
        (folder / "checked.json").write_text(json.dumps(made))
        whole = load_job(folder / "checked.json", self.chosen.set).model_dump(
            by_alias=True, mode="json", exclude_unset=True
        )
        with (
            real_cluster(Path(self.chosen.kubeconfig), self.folder) as cluster,
            JobInCluster(cluster, self.chosen.namespace, whole, folder) as running,
        ):
            yield running


if __name__ == "__main__":
    main()
