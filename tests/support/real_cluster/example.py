"""The examples that jobs of tests train: base model and data in the store, and an adapter's accuracy by other code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from node.builds import revision
from node.installation import STORE_KEYS
from node.job_manifest import changed
from support.cluster.processes import CACHE
from support.real_cluster.store import Bucket

ROOT = Path(__file__).parents[3]

Object = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """An example of the repository that tests train.

    Attributes:
        file: Its manifest for a cluster.
        maker: The script that makes its base model and data.
        prefix: Where in the bucket the manifest expects them.
        least_gain: How much an adapter that is worth its name gains: a share of held-out rows, or their mean reward.
        parts: What the manifest expects there: the maker's files by their names, and others by their whole paths.
    """

    file: Path
    maker: Path
    prefix: str
    least_gain: float
    parts: tuple[str | Path, ...] = ("base", "train.jsonl", "held_out.jsonl")

    @property
    def folder(self) -> Path:
        """Base model and data on this machine."""
        return CACHE / self.prefix

    def manifest(self, name: str, changes: Object | None = None) -> Object:
        """The manifest under another name, `changes` (dotted paths in its spec -> values) made."""
        job: Object = yaml.safe_load(self.file.read_text())
        job["metadata"]["name"] = name
        return changed(job, changes or {})

    def make(self) -> Path:
        """Make base model and data where they are not there yet; the folder of both."""
        # Threads that wait for work do not spin: on a busy machine that made it twenty times slower.
        calm = {"KMP_BLOCKTIME": "0", "OMP_WAIT_POLICY": "PASSIVE"}
        run([sys.executable, str(self.maker), "--out", str(self.folder)], calm)
        return self.folder

    def upload(self, bucket: Bucket) -> Path:
        """Make them, and bring them to the store; the folder of both."""
        self.make()
        parts = [str(self.folder / one) for one in self.parts]
        environment = {**STORE_KEYS, "AWS_ENDPOINT_URL": bucket.url}
        run([sys.executable, "-m", "lorarl_trainer.cli", "upload", *parts, f"s3://lorarl/{self.prefix}"], environment)
        return self.folder

    def accuracy(self, bucket: Bucket, adapter: Object, folder: Path) -> dict[str, float]:
        """Held-out accuracy before and after an adapter (`status.adapter`), by other code. `folder` gets its files."""
        figures = folder / "accuracy.json"
        downloaded = bucket.download(adapter["uri"], folder / "adapter")
        evaluate = [sys.executable, str(ROOT / "examples/addition/evaluate.py"), "--base", str(self.folder / "base")]
        run(
            [
                *evaluate,
                "--adapter",
                str(downloaded),
                "--held-out",
                str(self.folder / "held_out.jsonl"),
                "--out",
                str(figures),
            ]
        )
        measured: dict[str, float] = json.loads(figures.read_text())
        return measured


ADDITION = Example(
    ROOT / "examples/addition-cluster-cpu.yaml", ROOT / "examples/addition/make_base.py", "addition", least_gain=0.5
)
ARITHMETIC = Example(
    ROOT / "examples/arithmetic-cluster-gpu.yaml",
    ROOT / "examples/arithmetic/make_base.py",
    "arithmetic",
    least_gain=0.3,
)
GUESS = Example(
    ROOT / "examples/guess-cluster-cpu.yaml",
    ROOT / "examples/guess/make_base.py",
    "guess",
    least_gain=0.1,
    parts=("base", "train.jsonl", ROOT / "examples/guess/guess.py"),
)


def run(command: list[str], environment: dict[str, str] | None = None) -> str:
    """Run a program of this project; its output."""
    ours = (str(ROOT / one) for one in ("crds", "trainer_image", "operator"))
    packages = os.pathsep.join(filter(None, (*ours, os.environ.get("PYTHONPATH"))))
    whole = {**os.environ, "PYTHONPATH": packages, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=whole, check=False, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def note(out: Path, **what: Any) -> None:
    """Add figures to out/cluster/summary.json, which also has the number of CPUs and the commit."""
    about = {"commit": revision(), "cpus": len(os.sched_getaffinity(0))}
    (out / "summary.json").write_text(json.dumps({**noted(out), **about, **what}, indent=1) + "\n")


def noted(out: Path) -> dict[str, Any]:
    """The figures that are there."""
    summary = out / "summary.json"
    known: dict[str, Any] = json.loads(summary.read_text()) if summary.exists() else {}
    return known
