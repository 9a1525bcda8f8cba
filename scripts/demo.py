"""The demos behind `make demo` and `make demo-toy`: a model learns arithmetic, with GRPO, on this machine's CPU.

`make demo` teaches SmolLM2-135M-Instruct, a real language model; `make demo-toy` a tiny one that is made on the spot,
which also serves where the real one cannot be fetched. Each makes its base model and its data, and runs its manifest as
anyone would (`lorarl run`). It measures held-out accuracy before and after in another process that only uses
transformers and PEFT. All files go to out/demo/ or out/addition/. summary.json has the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
NOT_FETCHED = 3
"""How examples/smollm2/make_base.py ends if the package with the model cannot be had."""
MARK = "LORARL_RUN_ID"
"""Environment variable that marks the run's processes. Ray's daemons leave the process tree but keep it."""


@dataclass(frozen=True)
class Demo:
    """What one demo is made of.

    Attributes:
        out: its folder, which the manifest names too.
        manifest: the job.
        examples: the folder of its scripts.
        least_gain: held-out accuracy must rise by this much.
    """

    out: Path
    manifest: Path
    examples: Path
    least_gain: float

    @property
    def run(self) -> Path:
        """The folder of the run's own output."""
        return self.out / "run"


REAL = Demo(ROOT / "out/demo", ROOT / "examples/smollm2-cpu.yaml", ROOT / "examples/smollm2", 0.3)
TOY = Demo(ROOT / "out/addition", ROOT / "examples/addition-cpu.yaml", ROOT / "examples/addition", 0.5)


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it."""

    pid: int
    parent: int
    marked: bool
    """Its environment has the run's mark. Ray's workers overwrite theirs with a title, so ancestors count too."""


def family(processes: Iterable[Process], known: frozenset[int]) -> frozenset[int]:
    """Return the ids of the run's processes: marked ones, known ones that still run, and all their descendants."""
    alive = {process.pid: process for process in processes}
    members = {pid for pid, process in alive.items() if process.marked or pid in known}
    while grown := {pid for pid, process in alive.items() if process.parent in members} - members:
        members |= grown
    return frozenset(members)


class PeakMemory:
    """The most memory that a run's processes used together: proportional set size, sampled at most twice a second.

    A sample walks all pages of these processes, for which they wait, so there are fewer where one takes long.
    """

    _SECONDS, _SHARE = 0.5, 0.05
    """The shortest pause, and the share of the time that samples may take."""

    def __init__(self, mark: str) -> None:
        self._needle = f"{MARK}={mark}".encode()
        self._members: frozenset[int] = frozenset()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_ended, daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._ended.set()
        self._thread.join()

    def sample(self) -> int:
        """Return the bytes used now. A page that several processes share counts once."""
        self._members = family(self._processes(), self._members)
        return sum(_pss_bytes(pid) for pid in self._members)

    def _sample_until_ended(self) -> None:
        pause = self._SECONDS
        while not self._ended.wait(pause):
            began = time.monotonic()
            self.peak_bytes = max(self.peak_bytes, self.sample())
            pause = max(self._SECONDS, (time.monotonic() - began) / self._SHARE)

    def _processes(self) -> list[Process]:
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    # State and parent come after the name in parentheses, which may have any characters.
                    parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
                    marked = self._needle in (folder / "environ").read_bytes().split(b"\0")
                except OSError:  # it has ended, or is another user's
                    continue
                found.append(Process(int(folder.name), parent, marked))
        return found


def _pss_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def run_step(title: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
    """Run a command and show its output; end the demo if it fails."""
    if code := exit_code(title, command, environment):
        sys.exit(f"demo: {title} ended with exit code {code}")


def exit_code(title: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> int:
    """Run a command and show its output; return its exit code."""
    print(f"\n== {title}\n$ {' '.join(_short(part) for part in command)}", flush=True)
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=environment, check=False).returncode


def _short(part: str | Path) -> str:
    """Return a path relative to the project's root, where the command runs."""
    return str(part.relative_to(ROOT)) if isinstance(part, Path) and part.is_relative_to(ROOT) else str(part)


def adapter_folder(uri: str) -> Path:
    """Return the folder of a file: URI."""
    return ROOT / uri.removeprefix("file://").removeprefix("file:")


def summarise(
    run: Mapping[str, Any], accuracy: Mapping[str, Any], total_seconds: float, peak_memory_bytes: int
) -> dict[str, Any]:
    """Return the content of summary.json. Times are in seconds."""
    return {
        "accuracy_before": accuracy["accuracy_before"],
        "accuracy_after": accuracy["accuracy_after"],
        "held_out": accuracy["held_out"],
        **{name: accuracy[name] for name in ("gain_interval", "answers") if name in accuracy},
        "adapter_uri": run["adapter_uri"],
        "base_model": run["base_model"],
        "train_seconds": round(run["train_seconds"], 3),
        "total_seconds": round(total_seconds, 3),
        "peak_memory_bytes": peak_memory_bytes,
        "mean_abs_logprob_diff": run["mean_abs_logprob_diff"],
    }


def table(summary: Mapping[str, Any], report: Path) -> str:
    """Return the figures as a table for people."""
    before, after = summary["accuracy_before"], summary["accuracy_after"]
    interval = ""
    if "gain_interval" in summary:
        low, high = (100 * bound for bound in summary["gain_interval"])
        interval = f", 95% interval {low:+.1f} to {high:+.1f}"
    rows = [
        (
            "held-out accuracy",
            f"{before:.1%} -> {after:.1%}  "
            f"({100 * (after - before):+.1f} points{interval}, {summary['held_out']} prompts, greedy)",
        ),
        ("training", f"{summary['train_seconds']:.0f} s of {summary['total_seconds']:.0f} s in all"),
        ("peak memory", f"{summary['peak_memory_bytes'] / 2**30:.2f} GiB, Ray included"),
        (
            "vLLM against trainer",
            f"{summary['mean_abs_logprob_diff']:.1e} nats mean absolute log-probability difference",
        ),
        ("adapter", summary["adapter_uri"]),
        ("report", _short(report)),
    ]
    return "\n".join(f"  {name:<22}{value}" for name, value in rows)


def answers(summary: Mapping[str, Any]) -> str:
    """Return some questions with their answers before and after."""
    lines = []
    for shown in summary.get("answers", ()):
        lines.append(f"  {shown['question']}")
        for when in ("before", "after"):
            text = " ".join(shown[when].split())
            lines.append(f"    {when:<8}{text}")
    return "\n".join(lines)


def prepare(wanted: Demo) -> Demo:
    """Make base model and data, and return the demo that can be run: the toy where the real model cannot be had."""
    python = Path(sys.executable)
    if wanted == TOY:
        run_step("base model and prompts", [python, TOY.examples / "make_base.py", "--out", TOY.out])
        return TOY
    code = exit_code("base model", [python, REAL.examples / "make_base.py", "--out", REAL.out / "base"])
    if code == NOT_FETCHED:
        print("demo: a tiny model that is made here takes its place, as in `make demo-toy`", flush=True)
        return prepare(TOY)
    if code != 0:
        sys.exit(f"demo: base model ended with exit code {code}")
    run_step("questions", [python, REAL.examples / "make_data.py", "--out", REAL.out])
    return REAL


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--toy", action="store_true", help="teach the tiny model")
    parser.add_argument("--seed", type=int, default=0, help="seed of the training (spec.trainer.seed)")
    parser.add_argument("--backend", choices=("megatron", "fsdp"), help="the trainer's (spec.trainer.backend)")
    arguments = parser.parse_args()
    started = time.monotonic()
    python, lorarl = Path(sys.executable), Path(sys.executable).with_name("lorarl")
    demo = prepare(TOY if arguments.toy else REAL)

    shutil.rmtree(demo.run, ignore_errors=True)
    # Never, because the demo always trains, whatever an earlier one left.
    settings = ["--set", f"spec.trainer.seed={arguments.seed}", "--set", "spec.checkpoint.resume=Never"]
    if arguments.backend:
        settings += ["--set", f"spec.trainer.backend={arguments.backend}"]
    mark = uuid.uuid4().hex
    with PeakMemory(mark) as memory:
        run_step("training", [lorarl, "run", demo.manifest, "--out", demo.run, *settings], {**os.environ, MARK: mark})
    run = json.loads((demo.run / "run_summary.json").read_text())

    accuracy_file = demo.out / "accuracy.json"
    data: list[str | Path] = ["--base", demo.out / "base", "--adapter", adapter_folder(run["adapter_uri"])]
    data += ["--held-out", demo.out / "held_out.jsonl", "--out", accuracy_file]
    run_step(
        "accuracy before and after, with only transformers and PEFT", [python, demo.examples / "evaluate.py", *data]
    )

    summary = summarise(run, json.loads(accuracy_file.read_text()), time.monotonic() - started, memory.peak_bytes)
    (demo.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print("", answers(summary), table(summary, demo.run / "report.html"), "", sep="\n")
    gain = summary["accuracy_after"] - summary["accuracy_before"]
    if gain < demo.least_gain:
        sys.exit(f"demo: held-out accuracy rose by {100 * gain:.1f} points, expected {100 * demo.least_gain:.0f}")


if __name__ == "__main__":
    main()
