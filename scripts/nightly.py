"""Runs every tier of tests, also after one has failed, and prints one table: `make nightly`.

Logs, JUnit files and the table are in out/nightly/DATE. As root on a machine with 50 GB of free disk, all tiers that
need no GPU run. A tier that this machine cannot run skips its tests and gives the reason.

scripts/nightly.py                   all tiers, those for GPUs only on a machine with a GPU
scripts/nightly.py storage gpu_node  some of them
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
NO_TESTS = 5
"""pytest's exit status when no test was selected."""


@dataclass(frozen=True)
class Tier:
    """A part of the tests.

    Attributes:
        name: its name in the table.
        command: the command that runs it, or pytest's arguments.
        with_pytest: whether `command` has pytest's arguments.
        on_gpu: whether it needs a GPU.
        versions: modules of the tests' servers, as MODULE@VERSION, that are not those of scripts/tools.sh.
    """

    name: str
    command: tuple[str, ...]
    with_pytest: bool = True
    on_gpu: bool = False
    versions: tuple[str, ...] = ()


CUDA_IMAGE = "tests/cluster/test_cuda_image.py"
CACHE = Path(os.environ.get("LORARL_CACHE") or Path.home() / ".cache/lorarl")
OLDEST = (
    "k8s.io/kubernetes@v1.29.6",
    "github.com/ray-project/kuberay/ray-operator@v1.6.0",
    "sigs.k8s.io/kueue@v0.15.2",
)
NEWEST = ("k8s.io/kubernetes@v1.37.2", "github.com/ray-project/kuberay/ray-operator@v1.7.0")
TIERS = (
    Tier("lint", ("make", "lint"), with_pytest=False),
    Tier("unit", ("tests/unit",)),
    Tier("storage", ("tests/storage",)),
    Tier("apiserver", ("-m", "long or not long", "tests/apiserver")),
    Tier("oldest", ("tests/apiserver",), versions=OLDEST),
    Tier("newest", ("tests/apiserver",), versions=NEWEST),
    Tier("trainer", ("tests/trainer",)),
    Tier("run", ("-m", "long or not long", "tests/run")),
    Tier("chaos", ("-m", "long", "tests/chaos")),
    Tier("cluster", ("-m", "long or not long", "tests/cluster", f"--ignore={CUDA_IMAGE}")),
    Tier("gpu_node", ("-m", "long", "tests/gpu_node")),
    Tier("cuda_image", ("-m", "long", CUDA_IMAGE)),
    Tier("gpu", ("tests/gpu",), on_gpu=True),
    Tier("gpu_cluster", ("tests/gpu_cluster",), on_gpu=True),
)


@dataclass
class Outcome:
    """The result of a tier."""

    name: str
    verdict: str
    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)
    """Names of the tests that failed, and reasons of skips."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tiers and return the exit status: 1 if any of them failed."""
    parser = argparse.ArgumentParser(description="Run every tier of tests and print one table.")
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=", ".join(tier.name for tier in TIERS))
    parser.add_argument("--out", type=Path, help="folder of logs and table (default: out/nightly/DATE)")
    options = parser.parse_args(arguments)
    unknown = set(options.tiers) - {tier.name for tier in TIERS}
    if unknown:
        parser.error(f"unknown tier: {', '.join(sorted(unknown))}")
    started = datetime.datetime.now().astimezone()
    out: Path = options.out or ROOT / "out/nightly" / f"{started:%Y-%m-%d-%H%M}"
    out.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for tier in TIERS:
        if not options.tiers or tier.name in options.tiers:
            print(f"nightly: {tier.name}", file=sys.stderr, flush=True)
            outcomes.append(run(tier, out))
            (out / "table.txt").write_text(table(outcomes, started))
    print(table(outcomes, started), end="")
    print(f"logs and this table: {out}")
    return int(any(outcome.verdict == "FAILED" for outcome in outcomes))


def run(tier: Tier, out: Path, *, has_gpu: bool | None = None) -> Outcome:
    """Run a tier to its end. Its output goes to NAME.log, its results to NAME.xml."""
    if tier.on_gpu and not (shutil.which("nvidia-smi") is not None if has_gpu is None else has_gpu):
        return Outcome(tier.name, "not run", notes=["this machine has no GPU (nvidia-smi is not on PATH)"])
    results = (out / f"{tier.name}.xml").resolve()
    results.unlink(missing_ok=True)
    command = [*tier.command]
    if tier.with_pytest:
        command = [sys.executable, "-m", "pytest", *tier.command, f"--junitxml={results}"]
    started = time.monotonic()
    with (out / f"{tier.name}.log").open("wb") as log:
        environment = servers(tier) if tier.versions else {}
        if tier.versions and call(["scripts/tools.sh", "servers"], environment, log) != 0:
            return Outcome(tier.name, "FAILED", notes=[f"its servers could not be built; see {tier.name}.log"])
        status = call(command, environment, log)
    seconds = time.monotonic() - started
    if status == NO_TESTS:
        return Outcome(tier.name, "FAILED", seconds, notes=["no tests were found"])
    outcome = read(tier.name, results) if results.exists() else Outcome(tier.name, "ok")
    outcome.seconds = seconds
    if status != 0:
        outcome.verdict = "FAILED"
        outcome.notes = outcome.notes or [f"exit status {status}; see {tier.name}.log"]
    elif outcome.skipped and not outcome.passed:
        outcome.verdict = "skipped"
    return outcome


def call(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> int:
    """Run a command of this repository, and return its exit status."""
    every = os.environ | environment
    return subprocess.run(command, cwd=ROOT, env=every, stdout=log, stderr=subprocess.STDOUT, check=False).returncode


def servers(tier: Tier) -> dict[str, str]:
    """Give a tier's servers a cache, and return the environment that names it and their versions.

    What the usual cache has is linked, so that only other versions have to be built.
    """
    cache = CACHE / "versions" / tier.name
    (cache / "bin").mkdir(parents=True, exist_ok=True)
    for built in (CACHE / "bin").iterdir():
        if not (cache / "bin" / built.name).exists():
            (cache / "bin" / built.name).hardlink_to(built)
    for files in (CACHE / "share").iterdir():
        if not (cache / "share" / files.name).exists():
            shutil.copytree(files, cache / "share" / files.name)
    return {"LORARL_CACHE": str(cache), "LORARL_TOOL_VERSIONS": " ".join(tier.versions)}


def read(name: str, results: Path) -> Outcome:
    """Return a tier's counts from a JUnit file."""
    outcome = Outcome(name, "ok")
    reasons: dict[str, int] = {}
    for case in ET.parse(results).getroot().iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
            outcome.notes.append(f"failed: {case.get('classname')}::{case.get('name')}")
        elif skipped is not None:
            outcome.skipped += 1
            reason = (skipped.get("message") or "no reason given").splitlines()[0]
            reasons[reason] = reasons.get(reason, 0) + 1
        else:
            outcome.passed += 1
    outcome.notes += [f"skipped {count}: {reason}" for reason, count in reasons.items()]
    return outcome


def table(outcomes: Sequence[Outcome], started: datetime.datetime) -> str:
    """Return the table of all tiers so far, and below it the tests that failed and why others were skipped."""
    lines = [
        f"{started:%Y-%m-%d %H:%M %Z}, commit {_commit()}",
        f"{'tier':12} {'result':8} {'passed':>7} {'failed':>7} {'skipped':>8} {'seconds':>8}",
    ]
    for one in outcomes:
        counts = f"{one.passed:7} {one.failed:7} {one.skipped:8} {one.seconds:8.0f}"
        lines.append(f"{one.name:12} {one.verdict:8} {counts}")
    total = [sum(getattr(one, name) for one in outcomes) for name in ("passed", "failed", "skipped", "seconds")]
    lines.append(f"{'all':12} {'':8} {total[0]:7} {total[1]:7} {total[2]:8} {total[3]:8.0f}")
    lines += ["", *(f"{one.name}: {note}" for one in outcomes for note in one.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
