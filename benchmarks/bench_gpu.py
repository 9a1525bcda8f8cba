"""Compares lorarl and TRL on this machine's GPUs: the same model shape, prompts, lengths, LoRA and precision.

make bench-gpu                  all of it on one GPU, 12 minutes; then the table and the plot in docs/
make bench-gpu GPUS="1 2"       on two GPUs, in the same time: one size on each, then the last on both, data parallel
make bench-gpu WORK=ragged      answers of very different lengths; also 3k, 16k, long-prompt, 32k, and large for 32B.
                                It renders nothing
python benchmarks/bench_gpu.py --gpus 2 --two same --sizes 7b --set spec.trainer.tensorParallelSize=2
python benchmarks/bench_gpu.py --gpus 2 --two same --work 128k --set spec.trainer.contextParallelSize=2
python benchmarks/bench_gpu.py --gpus 2 --two same --work ragged --steps 6 --warmup 3 \\
  --set spec.cluster.gpusPerNode=1 --set spec.rollout.separateEngines={} --set spec.rollout.maxStaleness=1 \\
  --set 'spec.algorithm.correction={preset: decoupled_token_is}'      a GPU trains, and the other generates a step ahead
python benchmarks/bench_gpu.py --work ragged --prompts 8 --trl-settings default      fewer prompts, for a slow peer
python benchmarks/bench_gpu.py --sizes 7b --systems ours --steps 4 --out part.json     a part of it
python benchmarks/bench_gpu.py --merge part.json other.json --out benchmarks/results/gpu-DATE.json
python benchmarks/bench_gpu.py --render benchmarks/results/gpu-DATE.json     write the table and the plot again

Each part runs in its own process, so that the GPU is empty at its start. The raw figures are written after each part.
Both systems run on the same GPU, first lorarl, then TRL.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "crds", "trainer_image")]

from side_by_side import ours  # noqa: E402
from side_by_side.memory import PeakGpuMemory  # noqa: E402
from side_by_side.processes import environment  # noqa: E402
from side_by_side.work import SHAPES, WORKS, Work, write_prompts  # noqa: E402

SYSTEMS = ("ours", "device", "trl")
TMPFS = Path("/dev/shm")
ROOM = 40 << 30
"""Twice the size of both models."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", default="equal", choices=WORKS, help="the step; equal: all answers of one length")
    parser.add_argument("--prompts", type=int, help="per step  [default: the work's]")
    parser.add_argument("--sizes", nargs="+", help=f"model shapes: {', '.join(SHAPES)}  [default: the work's]")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        help="device: a look inside lorarl's worker  [default: all for equal work, ours for other]",
    )
    parser.add_argument("--trl-settings", nargs="+", default=["best"], help="best, default")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each system")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument(
        "--gpus",
        type=int,
        nargs="+",
        default=[1],
        choices=(1, 2),
        help="2: two sizes at a time, and the last size data parallel",
    )
    parser.add_argument(
        "--two",
        nargs="+",
        default=["twice", "same"],
        choices=("twice", "same"),
        help="what two GPUs do: twice the prompts, the same step  [default: both]",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change lorarl's manifest, as `lorarl run` does",
    )
    parser.add_argument("--minutes", type=float, help="then stop what runs, and leave out the rest")
    parser.add_argument("--models", type=Path, help="folder for the models  [default: shared memory if there is room]")
    parser.add_argument(
        "--out", type=Path, default=ROOT / f"benchmarks/results/gpu-{datetime.date.today():%Y-%m-%d}.json"
    )
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="merge raw figures into --out")
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="write docs/performance.md's table and plot from raw figures"
    )
    chosen = parser.parse_args()
    if chosen.merge:
        write(chosen.out, merge([json.loads(path.read_text()) for path in chosen.merge]))
    elif chosen.render:
        from side_by_side.report import render

        render(json.loads(chosen.render.read_text()), ROOT, chosen.render.resolve().relative_to(ROOT))
    else:
        sys.exit(Bench(chosen).run())


class Bench:
    """The parts in order. The others run even if one fails."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen, self.started = chosen, time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="lorarl-bench-"))
        self.models = chosen.models or model_folder()
        self.work, sizes = WORKS[chosen.work]
        self.work = replace(self.work, prompts=chosen.prompts or self.work.prompts)
        self.sizes = chosen.sizes or sizes
        self.systems = chosen.systems or (SYSTEMS if chosen.work == "equal" else SYSTEMS[:1])
        self.failed: list[str] = []
        self.writing = threading.Lock()
        self.result: dict[str, Any] = {
            "date": f"{datetime.datetime.now(datetime.UTC):%FT%TZ}",
            "commands": [" ".join(["python", *sys.argv])],
            "commit": ours.commit(ROOT),
            "runs": [],
        }

    def run(self) -> int:
        sizes, gpus = self.sizes, visible_gpus(max(self.chosen.gpus))
        self.result |= last_object(self.process("side_by_side.prepare", gpus[:1], str(self.models), *sizes))
        for size in sizes:
            write_prompts(self.models / size, self.work)
        if 1 in self.chosen.gpus:
            # One size per GPU, if there are several.
            with ThreadPoolExecutor(len(gpus)) as lanes:
                list(lanes.map(self.one_gpu, sizes, itertools.cycle(gpus)))
        if 2 in self.chosen.gpus:
            self.two_gpus(sizes[-1], gpus)
        shutil.rmtree(self.folder)
        print(f"raw figures: {self.chosen.out}")
        for failure in self.failed:
            print(f"FAILED: {failure}", file=sys.stderr)
        return 1 if self.failed else 0

    def one_gpu(self, size: str, gpu: int) -> None:
        if "ours" in self.systems:
            self.attempt(f"{size} lorarl", lambda: self.ours(size, (gpu,), self.work))
        if "device" in self.systems:
            self.attempt(f"{size} device", lambda: self.device(size, gpu))
        if "trl" in self.systems:
            for setting in self.chosen.trl_settings:
                self.attempt(f"{size} trl {setting}", partial(self.trl, size, setting, gpu))

    def two_gpus(self, size: str, gpus: Sequence[int]) -> None:
        if "twice" in self.chosen.two:
            self.attempt(f"{size} on two GPUs, twice the prompts", lambda: self.ours(size, gpus, self.work.times(2)))
        if "same" in self.chosen.two:
            self.attempt(f"{size} on two GPUs, the same step", lambda: self.ours(size, gpus, self.work))

    def attempt(self, name: str, part: Callable[[], dict[str, Any]]) -> None:
        clock = time.monotonic()
        print(f"{clock - self.started:5.0f} s  {name}", file=sys.stderr, flush=True)
        try:
            run = part()
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            self.failed.append(f"{name}: {error}")
            return
        with self.writing:
            self.result["runs"].append({**run, "part_seconds": time.monotonic() - clock})
            write(self.chosen.out, self.result)
        print(f"         {name}: {brief(run)}", file=sys.stderr, flush=True)

    def ours(self, size: str, gpus: Sequence[int], work: Work) -> dict[str, Any]:
        folder = self.folder / f"ours-{size}-{len(gpus)}-{work.prompts}"
        job = ours.manifest(self.models / size, folder, work, len(gpus), self.chosen.warmup + self.chosen.steps)
        clock = time.monotonic()
        with PeakGpuMemory(gpus[0]) as memory:
            try:
                self.command(ours.command(folder, job, self.chosen.set), gpus)
            except subprocess.CalledProcessError:
                print(ours.log_tail(folder), file=sys.stderr)
                raise
        ran = ours.work_of(folder, work)
        steps = ours.steps_of(folder, ran)
        startup = time.monotonic() - clock - sum(step["seconds"] for step in steps)
        return {
            "system": "lorarl",
            "setting": " ".join(self.chosen.set),
            **self.described(size, len(gpus), ran, steps, memory),
            "startup_seconds": startup,
        }

    def trl(self, size: str, setting: str, gpu: int) -> dict[str, Any]:
        from importlib.util import find_spec

        if find_spec("trl") is None:
            raise ValueError("TRL is not installed. Run `uv pip install --no-deps trl==1.16.0` in the GPU environment.")
        steps, work = str(self.chosen.warmup + self.chosen.steps), json.dumps(vars(self.work))
        with PeakGpuMemory(gpu) as memory:
            lines = self.process("side_by_side.trl_side", (gpu,), str(self.models / size), setting, steps, work)
        made = [json.loads(line)["step"] for line in lines if line.startswith('{"step"')]
        return {"system": "trl", "setting": setting, **self.described(size, 1, self.work, made, memory)}

    def device(self, size: str, gpu: int) -> dict[str, Any]:
        folder = self.folder / f"device-{size}"
        overrides = [*self.chosen.set, "spec.rollout.offload=[kv_cache]"]
        job = ours.manifest(self.models / size, folder, Work(), 1, 1)
        *_, manifest, _, _ = ours.command(folder, job, [])
        lines = self.process("side_by_side.device_side", (gpu,), str(self.models / size), manifest, *overrides)
        return {"system": "device", "size": size, "gpus": 1, **last_object(lines)}

    def described(
        self, size: str, gpus: int, work: Work, steps: Sequence[Any], memory: PeakGpuMemory
    ) -> dict[str, Any]:
        measured = list(steps[self.chosen.warmup :])
        if len(measured) != self.chosen.steps:
            raise ValueError(f"{len(steps)} steps were made, expected {self.chosen.warmup + self.chosen.steps}")
        about = {"size": size, "gpus": gpus, "completions": work.completions, "work": vars(work)}
        return {
            **about,
            "warmup": list(steps[: self.chosen.warmup]),
            "steps": measured,
            "peak_memory_bytes": memory.peak_bytes,
        }

    def process(self, module: str, gpus: Sequence[int], *arguments: str) -> list[str]:
        """Run a module of the benchmark and return the lines that it prints."""
        return self.command([sys.executable, "-m", module, *arguments], gpus).splitlines()

    def command(self, command: Sequence[str], gpus: Sequence[int]) -> str:
        """Run a command on these GPUs, with the product and the benchmark on its path; show its errors if it fails."""
        left = None if self.chosen.minutes is None else self.chosen.minutes * 60 - (time.monotonic() - self.started)
        if left is not None and left <= 0:
            raise subprocess.SubprocessError(f"left out: {self.chosen.minutes:g} minutes are over")
        with tempfile.TemporaryFile("w+", errors="replace", dir=self.folder) as errors:
            try:
                run = subprocess.run(
                    command,
                    env=environment(gpus),
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    timeout=left,
                    check=True,
                )
            except subprocess.TimeoutExpired as error:
                raise subprocess.SubprocessError(f"cut off: {self.chosen.minutes:g} minutes are over") from error
            except subprocess.CalledProcessError as error:
                errors.seek(0)
                print(f"{error.stdout[-2000:]}\n{errors.read()[-6000:]}", file=sys.stderr)
                raise
        return run.stdout


def visible_gpus(count: int) -> list[int]:
    """Return the first GPUs that may be used, by their numbers on the machine."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [int(name) for name in named.split(",")][:count] if named else list(range(count))


def last_object(lines: Sequence[str]) -> dict[str, Any]:
    """Return the last JSON object that was printed, because libraries print too."""
    found: dict[str, Any] = json.loads(next(line for line in reversed(lines) if line.startswith("{")))
    return found


def model_folder() -> Path:
    """Return a folder in shared memory if the models fit, otherwise a temporary folder."""
    room = shutil.disk_usage(TMPFS).free if TMPFS.is_dir() else 0
    return Path(tempfile.gettempdir() if room < ROOM else TMPFS, "lorarl-bench-models")


def merge(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge results: all their runs, and of equal runs the newest."""
    runs: dict[tuple[Any, ...], Any] = {}
    for part in sorted(parts, key=lambda part: part["date"]):
        for run in part["runs"]:
            key = (run["system"], run["size"], run["gpus"], run.get("completions"), run.get("setting"))
            runs[key] = {**run, "date": run.get("date", part["date"]), "commit": run.get("commit", part["commit"])}
    newest = max(parts, key=lambda part: part["date"])
    commands = [command for part in parts for command in part["commands"]]
    return {**newest, "commands": commands, "runs": list(runs.values())}


def brief(run: dict[str, Any]) -> str:
    """Return a run in one line."""
    if "steps" not in run:
        return ", ".join(f"{name} {value:.3f}" for name, value in run.items() if isinstance(value, float))
    from side_by_side.report import mean

    phases = {name: mean(run, name) for name in run["steps"][0]}
    return ", ".join(f"{name} {value:.3f}" for name, value in phases.items())


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
