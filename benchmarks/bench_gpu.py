"""Compares lorarl and TRL on this machine's GPUs: the same model shape, prompts, lengths, LoRA and precision.

make bench-gpu                  all of it on one GPU, 12 minutes; then the table and the plot in docs/
make bench-gpu GPUS="1 2"       on two GPUs, in the same time: one size on each, then the last on both, data parallel
make bench-gpu WORK=ragged      answers of very different lengths; also 3k, 16k, long-prompt, 32k, and large for 32B.
                                It renders nothing
python benchmarks/bench_gpu.py --gpus 2 --several same --sizes 7b --set spec.trainer.tensorParallelSize=2
python benchmarks/bench_gpu.py --gpus 2 --several same --work 128k --set spec.trainer.contextParallelSize=2
python benchmarks/bench_gpu.py --gpus 2 --several same --work ragged --steps 6 --warmup 3 \\
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
import subprocess
import sys
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
from side_by_side.systems import Systems, brief, model_folder, visible_gpus  # noqa: E402
from side_by_side.work import SHAPES, WORKS, write_prompts  # noqa: E402

SYSTEMS = ("ours", "device", "trl")


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
        help="numbers of them; above 1: as many sizes at a time, and the last size data parallel",
    )
    parser.add_argument(
        "--several",
        nargs="+",
        default=["scaled", "same"],
        choices=("scaled", "same"),
        help="what N GPUs do: N times the prompts, the same step  [default: both]",
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
    if min(chosen.gpus) < 1:
        parser.error(f"--gpus: got {min(chosen.gpus)}, expected numbers from 1")
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
        self.chosen = chosen
        self.run_on = Systems(chosen.models or model_folder(), chosen.warmup, chosen.steps, chosen.minutes)
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
        self.result |= self.run_on.prepare(gpus[:1], *sizes)
        for size in sizes:
            write_prompts(self.run_on.models / size, self.work)
        if 1 in self.chosen.gpus:
            # One size per GPU, if there are several.
            with ThreadPoolExecutor(len(gpus)) as lanes:
                list(lanes.map(self.one_gpu, sizes, itertools.cycle(gpus)))
        for count in sorted(set(self.chosen.gpus) - {1}):
            self.several_gpus(sizes[-1], gpus[:count])
        self.run_on.close()
        print(f"raw figures: {self.chosen.out}")
        for failure in self.failed:
            print(f"FAILED: {failure}", file=sys.stderr)
        return 1 if self.failed else 0

    def one_gpu(self, size: str, gpu: int) -> None:
        on, settings = self.run_on, self.chosen.set
        if "ours" in self.systems:
            self.attempt(f"{size} lorarl", lambda: on.ours(size, (gpu,), self.work, settings))
        if "device" in self.systems:
            self.attempt(f"{size} device", lambda: on.device(size, gpu, settings))
        if "trl" in self.systems:
            for setting in self.chosen.trl_settings:
                self.attempt(f"{size} trl {setting}", partial(on.trl, size, setting, (gpu,), self.work))

    def several_gpus(self, size: str, gpus: Sequence[int]) -> None:
        count, on, settings = len(gpus), self.run_on, self.chosen.set
        if "scaled" in self.chosen.several:
            work = self.work.times(count)
            self.attempt(
                f"{size} on {count} GPUs, {count} times the prompts", lambda: on.ours(size, gpus, work, settings)
            )
        if "same" in self.chosen.several:
            self.attempt(f"{size} on {count} GPUs, the same step", lambda: on.ours(size, gpus, self.work, settings))

    def attempt(self, name: str, part: Callable[[], dict[str, Any]]) -> None:
        clock = time.monotonic()
        print(f"{clock - self.run_on.started:5.0f} s  {name}", file=sys.stderr, flush=True)
        try:
            run = part()
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            self.failed.append(f"{name}: {error}")
            return
        with self.writing:
            self.result["runs"].append({**run, "part_seconds": time.monotonic() - clock})
            write(self.chosen.out, self.result)
        print(f"         {name}: {brief(run)}", file=sys.stderr, flush=True)


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


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
