"""The example that jobs of these tests train: its base model and data, in the store, and the measure of an adapter by other code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from cluster.builds import revision
from cluster.installation import STORE_KEYS
from cluster.store import Bucket
from support.cluster.processes import CACHE

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/addition-cluster-cpu.yaml"
FOLDER = CACHE / "addition"
LEAST_GAIN = 0.5
"""Share of the held-out rows: an adapter that is worth its name."""

Object = dict[str, Any]


def manifest(name: str, changes: Object | None = None) -> Object:
    """The example's manifest under another name, `changes` (dotted paths in its spec -> values) made."""
    job: Object = yaml.safe_load(EXAMPLE.read_text())
    job["metadata"]["name"] = name
    for path, value in (changes or {}).items():
        *folders, last = path.split(".")
        place = job["spec"]
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return job


def upload(bucket: Bucket) -> Path:
    """Make base model and data where they are not there yet, and bring them to the store; the folder of both."""
    run([sys.executable, str(ROOT / "examples/addition/make_base.py"), "--out", str(FOLDER)])
    parts = [str(FOLDER / name) for name in ("base", "train.jsonl", "held_out.jsonl")]
    environment = {**STORE_KEYS, "AWS_ENDPOINT_URL": bucket.url}
    run([sys.executable, "-m", "lorarl_trainer.cli", "upload", *parts, "s3://lorarl/addition"], environment)
    return FOLDER


def accuracy(bucket: Bucket, adapter: Object, folder: Path) -> dict[str, float]:
    """Held-out accuracy before and after an adapter (`status.adapter`), measured without lorarl's code; `folder` is for its files."""
    figures = folder / "accuracy.json"
    downloaded = bucket.download(adapter["uri"], folder / "adapter")
    evaluate = [sys.executable, str(ROOT / "examples/addition/evaluate.py"), "--base", str(FOLDER / "base"), "--adapter", str(downloaded)]
    run([*evaluate, "--held-out", str(FOLDER / "held_out.jsonl"), "--out", str(figures)])
    measured: dict[str, float] = json.loads(figures.read_text())
    return measured


def run(command: list[str], environment: dict[str, str] | None = None) -> str:
    """Run a program of this project; its output."""
    packages = os.pathsep.join(str(ROOT / one) for one in ("crds", "trainer_image", "operator"))
    whole = {**os.environ, "PYTHONPATH": packages, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=whole, check=False, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def note(out: Path, **what: Any) -> None:
    """Add figures to out/cluster/summary.json, which says as well on how many CPUs and with which commit they were taken."""
    about = {"commit": revision(), "cpus": len(os.sched_getaffinity(0))}
    (out / "summary.json").write_text(json.dumps({**noted(out), **about, **what}, indent=1) + "\n")


def noted(out: Path) -> dict[str, Any]:
    """The figures that are there."""
    summary = out / "summary.json"
    known: dict[str, Any] = json.loads(summary.read_text()) if summary.exists() else {}
    return known
