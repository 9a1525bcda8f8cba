"""Measures how steps scale over the GPUs of one machine: data, tensor, context and expert parallel, beside TRL.

python benchmarks/bench_scaling.py                             all rows that this machine can run, one at a time
python benchmarks/bench_scaling.py --plan                      only say which these are, and why the others are not
python benchmarks/bench_scaling.py --rows 7b-equal trl-8       some of them, by name or group
python benchmarks/bench_scaling.py --cpu --out cpu.json        a trial on a CPU: tiny models on 1, 2 and 4 workers
python benchmarks/bench_scaling.py --render FILE               print the table of raw figures

Each row is kept in --out as soon as it is measured. A row that is there is not measured again: after a break, the same
command continues. Models have random weights, made here. JOB and KUBECONFIG are as in bench_gpu_cluster.py, which runs
the rows of pods.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "crds", "trainer_image")]

from scaling.book import Record, make_missing, missing  # noqa: E402
from scaling.machine import Machine, find_gpus  # noqa: E402
from scaling.rows import CPU_ROWS, ROWS, Row, chosen_rows  # noqa: E402
from scaling.table import markdown  # noqa: E402
from side_by_side import ours  # noqa: E402
from side_by_side.systems import Systems, brief, model_folder, visible_gpus  # noqa: E402
from side_by_side.work import write_prompts  # noqa: E402
from toy import read_figures  # noqa: E402

LARGE_BYTES = 100_000_000_000
"""A larger model is removed after its last row, so that the next one has room."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="names or groups of rows  [default: all]")
    parser.add_argument("--plan", action="store_true", help="only say which rows can run")
    parser.add_argument("--cpu", action="store_true", help="a trial on a CPU")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of each row")
    parser.add_argument("--warmup", type=int, default=2, help="steps before them")
    parser.add_argument("--minutes", type=float, help="then stop what runs, and leave out the rest")
    parser.add_argument("--models", type=Path, help="folder for the models  [default: shared memory if there is room]")
    parser.add_argument("--job", type=Path, metavar="FILE", help="a LoRARLJob that runs on this machine's cluster")
    parser.add_argument(
        "--out", type=Path, default=ROOT / f"benchmarks/results/scaling-{datetime.date.today():%Y-%m-%d}.json"
    )
    parser.add_argument("--render", type=Path, metavar="FILE", help="print the table of raw figures")
    chosen = parser.parse_args()
    if chosen.render:
        print(markdown(json.loads(chosen.render.read_text())))
        return
    try:
        rows = chosen_rows(CPU_ROWS if chosen.cpu else ROWS, chosen.rows)
    except ValueError as error:
        parser.error(str(error))
    bench = Bench(chosen)
    possible = bench.tell_plan(rows)
    code = 0 if chosen.plan else bench.run(possible)
    bench.run_on.close()
    sys.exit(code)


class Bench:
    """The rows in order. The others run even if one fails."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        models = chosen.models or model_folder()
        models.mkdir(parents=True, exist_ok=True)
        gpus, driver = ([], "") if chosen.cpu else find_gpus()
        made = frozenset(folder.name for folder in models.iterdir())
        self.machine = Machine(gpus, driver, shutil.disk_usage(models).free, made)
        self.run_on = Systems(models, chosen.warmup, chosen.steps, chosen.minutes)
        self.left: list[Row] = []
        self.facts: dict[str, dict[str, Any]] = {}

    def tell_plan(self, rows: Sequence[Row]) -> list[Row]:
        """Say which rows are kept, run, or cannot run here, and why; return those that can."""
        new, possible = missing(rows, read_figures(self.chosen.out, [])), []
        for row in rows:
            reason = None if self.chosen.cpu else self.machine.why_not(row, job=self.chosen.job is not None)
            told = "kept" if row not in new else f"cannot run: {reason}" if reason else "runs"
            print(f"{row.name:20} {told}", file=sys.stderr)
            possible += [row] if reason is None else []
        return possible

    def run(self, rows: Sequence[Row]) -> int:
        self.left = missing(rows, read_figures(self.chosen.out, []))
        failed = make_missing(rows, self.chosen.out, self.measure)
        print(f"raw figures: {self.chosen.out}\n\n{markdown(read_figures(self.chosen.out, []))}")
        for failure in failed:
            print(f"FAILED: {failure}", file=sys.stderr)
        return 1 if failed else 0

    def measure(self, row: Row) -> Record:
        """Run a row; return its record."""
        clock = time.monotonic()
        print(f"{clock - self.run_on.started:5.0f} s  {row.name}", file=sys.stderr, flush=True)
        gpus = [] if self.chosen.cpu else visible_gpus(row.gpus)
        try:
            if row.size not in self.facts:
                self.facts[row.size] = self.run_on.prepare(gpus[:1], row.size)
            write_prompts(self.run_on.models / row.size, row.work)
            run = getattr(self, f"run_{row.system}")(row, gpus)
        finally:
            self.left.remove(row)
            self.make_room(row.size)
        print(f"         {row.name}: {brief(run)}", file=sys.stderr, flush=True)
        return {
            "date": f"{datetime.datetime.now(datetime.UTC):%FT%TZ}",
            "commit": ours.commit(ROOT),
            "command": " ".join(["python", *sys.argv]),
            "driver": self.machine.driver,
            **self.facts[row.size],
            "run": {**run, "part_seconds": time.monotonic() - clock},
        }

    def run_lorarl(self, row: Row, gpus: Sequence[int]) -> dict[str, Any]:
        return self.run_on.ours(row.size, gpus, row.work, row.settings)

    def run_trl(self, row: Row, gpus: Sequence[int]) -> dict[str, Any]:
        return self.run_on.trl(row.size, "best", gpus, row.work)

    def run_pods(self, row: Row, gpus: Sequence[int]) -> dict[str, Any]:
        """Let bench_gpu_cluster.py run the job, and lose one of its pods."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "pods.json")
            settings = [part for setting in row.settings for part in ("--set", setting)]
            script = str(ROOT / "benchmarks/bench_gpu_cluster.py")
            options = ["--parts", "pods", "killed", "--caches", "warm", "--sizes", row.size, "--job", self.chosen.job]
            places = ["--models", self.run_on.models, "--out", out]
            self.run_on.command([sys.executable, script, *map(str, (*options, *places)), *settings], gpus)
            runs = {run["part"]: run for run in json.loads(out.read_text())["runs"]}
        return {**runs["pods"], "lost": runs["killed"]}

    def make_room(self, size: str) -> None:
        """Remove a large model of which no row is left."""
        folder = self.run_on.models / size
        if any(row.size == size for row in self.left):
            return
        if sum(file.stat().st_size for file in folder.glob("*.safetensors")) > LARGE_BYTES:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
