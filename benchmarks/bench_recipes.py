"""Teaches a real model small tasks with lorarl and with TRL, on the same data, seeds, steps and settings.

make bench-recipes                              everything on one GPU: about 50 minutes; then docs/recipes.md
make bench-recipes GPUS=2                       on two GPUs, a run on each
python benchmarks/bench_recipes.py --recipes sums gcd --seeds 0 --systems lorarl       a part of it
python benchmarks/bench_recipes.py --minutes 9  what fits; the same command makes what is missing
python benchmarks/bench_recipes.py --seeds 1 2 --at-once 4    four runs share a GPU; their times are not compared
python benchmarks/bench_recipes.py --recipes sums chain_sum --systems lorarl-ppo lorarl-dapo    other algorithms
python benchmarks/bench_recipes.py --gpus 2 --at-once 2 --only sums:1:trl products:2:trl    these runs
python benchmarks/bench_recipes.py --render     writes docs/recipes.md and its pictures again

It needs the package reasoning-gym 0.1.25, and for TRL `uv pip install --no-deps trl==1.16.0`. Raw figures are written
after each run. The held-out rows are measured by one vLLM for both systems, after a run, so it costs neither any time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("benchmarks", "crds", "trainer_image")]

from lorarl_trainer.progress import read_summary  # noqa: E402
from recipes import data, ours, trl_side  # noqa: E402
from recipes.tasks import RECIPES, Settings  # noqa: E402
from side_by_side.ours import command as lorarl_run  # noqa: E402
from side_by_side.ours import commit  # noqa: E402
from side_by_side.processes import device, environment  # noqa: E402

SYSTEMS = ("lorarl", "trl", "trl-corrected", "trl-rloo", "trl-dpo", *ours.SYSTEMS[1:])
RAW = ROOT / "benchmarks/results/recipes.json"
TEACHER_SEED = 1000

type Key = tuple[str, int, str]
"""Recipe, seed and system."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--systems", nargs="+", default=SYSTEMS[:2], choices=SYSTEMS)
    parser.add_argument("--only", nargs="+", type=key, metavar="RECIPE:SEED:SYSTEM", help="these runs, in this order")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--every", type=int, default=Settings.every, help="steps between two measurements")
    parser.add_argument("--prompts", type=int, default=Settings.prompts, help="prompts per step, for a trial")
    parser.add_argument("--rows", type=int, default=Settings.rows, help="held-out rows, for a trial")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs with a run each; 0: a trial on the CPU")
    parser.add_argument("--at-once", type=int, default=1, help="runs that share a GPU; above 1 for accuracies alone")
    parser.add_argument("--model", type=Path, help="a folder  [default: SmolLM2-135M-Instruct, made here]")
    parser.add_argument("--minutes", type=float, help="start no run after that")
    parser.add_argument("--out", type=Path, default=RAW, help="raw figures, to which these are added")
    parser.add_argument("--render", action="store_true", help="only write docs/recipes.md and its pictures")
    chosen = parser.parse_args()
    if chosen.render:
        from recipes.report import render

        render(ROOT, chosen.out)
    else:
        sys.exit(Bench(chosen).run())


def key(text: str) -> Key:
    """Return a run as `--only` names it.

    Raises:
        ValueError: there is no such recipe or system, or the seed is no number.
    """
    recipe, seed, system = text.split(":")
    if recipe not in RECIPES or system not in SYSTEMS:
        raise ValueError(f"expected one of {', '.join(RECIPES)}, a seed, and one of {', '.join(SYSTEMS)}")
    return recipe, int(seed), system


class Bench:
    """The missing runs, one at a time on each GPU. The others run even if one fails."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen, self.started = chosen, time.monotonic()
        self.settings = Settings(prompts=chosen.prompts, steps=chosen.steps, every=chosen.every, rows=chosen.rows)
        self.folder = Path(tempfile.mkdtemp(prefix="lorarl-recipes-"))
        self.model = chosen.model or self.folder / "base"
        self.result: dict[str, Any] = json.loads(chosen.out.read_text()) if chosen.out.exists() else {"runs": []}
        if self.result.setdefault("settings", asdict(self.settings)) != asdict(self.settings):
            sys.exit(f"{chosen.out} has other settings: {self.result['settings']}. Choose another file with --out.")
        self.failed: list[str] = []
        self.writing, self.teaching = threading.Lock(), threading.Lock()

    def run(self) -> int:
        todo: queue.SimpleQueue[Key] = queue.SimpleQueue()
        missing = self.missing()
        for key in missing:
            todo.put(key)
        self.prepare({recipe for recipe, _, _ in missing})
        gpus = [threading.Thread(target=self.use, args=(gpu, todo)) for gpu in range(max(self.chosen.gpus, 1))]
        for thread in gpus:
            thread.start()
        for thread in gpus:
            thread.join()
        shutil.rmtree(self.folder)
        print(f"raw figures: {self.chosen.out}; {len(self.missing())} runs are missing", file=sys.stderr)
        for failure in self.failed:
            print(f"FAILED: {failure}", file=sys.stderr)
        return 1 if self.failed else 0

    def missing(self) -> list[Key]:
        """Return the runs that are asked for and not made yet, a whole seed before the next."""
        made = {(run["recipe"], run["seed"], run["system"]) for run in self.result["runs"]}
        asked = self.chosen.only or [
            (recipe, seed, system)
            for seed in self.chosen.seeds
            for recipe in self.chosen.recipes
            for system in self.chosen.systems
        ]
        return [key for key in asked if key not in made]

    def prepare(self, recipes: set[str]) -> None:
        """Make the rows, and the base model unless one is given."""
        for name in recipes:
            data.write(self.folder / "data" / name, RECIPES[name])
        if self.chosen.model is None:
            make = [sys.executable, str(ROOT / "examples/smollm2/make_base.py"), "--out", str(self.model)]
            subprocess.run([*make, "--precision", "bf16" if self.chosen.gpus else "fp32"], check=True)

    def use(self, gpu: int, todo: queue.SimpleQueue[Key]) -> None:
        """Make runs on one GPU until none is left or the time is over."""
        log = self.folder / f"held-out-{gpu}.log"
        with HeldOut(self.model, self.settings.rows, self.environment(gpu), log) as held_out:
            lanes = [threading.Thread(target=self.lane, args=(gpu, todo, held_out)) for _ in range(self.chosen.at_once)]
            for lane in lanes:
                lane.start()
            for lane in lanes:
                lane.join()

    def lane(self, gpu: int, todo: queue.SimpleQueue[Key], held_out: HeldOut) -> None:
        while self.chosen.minutes is None or time.monotonic() - self.started < 60 * self.chosen.minutes:
            try:
                key = todo.get_nowait()
            except queue.Empty:
                return
            self.attempt(key, gpu, held_out)

    def attempt(self, key: Key, gpu: int, held_out: HeldOut) -> None:
        recipe, seed, system = key
        name = f"{system} {recipe}, seed {seed}"
        try:
            run = self.make(recipe, seed, system, gpu, held_out)
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            self.failed.append(f"{name}: {error}")
            return
        with self.writing:
            self.result["runs"].append(run)
            self.chosen.out.parent.mkdir(parents=True, exist_ok=True)
            self.chosen.out.write_text(json.dumps(self.result, indent=1) + "\n")
        shares = " ".join(f"{evaluation['right']:.3f}" for evaluation in run["held_out"])
        seconds = sum(step["seconds"] for step in run["steps"])
        elapsed = time.monotonic() - self.started
        line = f"{elapsed:5.0f} s  {name}: {shares}, {run['start_seconds']:.1f} + {seconds:.1f} s"
        print(line, file=sys.stderr, flush=True)

    def make(self, recipe: str, seed: int, system: str, gpu: int, held_out: HeldOut) -> dict[str, Any]:
        """Train, then measure every adapter; return the figures."""
        rows, out = self.folder / "data" / recipe, self.folder / f"{recipe}-{seed}-{system}"
        measured = range(self.settings.every, self.settings.steps + 1, self.settings.every)
        own = system in ours.SYSTEMS
        if own:
            teacher = self.teacher(recipe, gpu) if system == "lorarl-distillation" else None
            command = self.our_command(recipe, seed, out, ours.changes(system, rows, teacher))
            adapters = ours.adapters_of(out, measured)
        else:
            settings = json.dumps(asdict(self.settings))
            command = [
                sys.executable,
                "-m",
                "recipes.trl_side",
                recipe,
                str(self.model),
                str(rows),
                str(out),
                str(seed),
                settings,
            ]
            command += [mode] if (mode := system.removeprefix("trl").removeprefix("-")) else []
            command += ["shared"] if self.chosen.at_once > 1 else []
            adapters = {step: trl_side.adapter_folder(out, step) for step in measured}
        clock = time.monotonic()
        printed = self.process(command, gpu, out)
        seconds = time.monotonic() - clock
        startup: dict[str, float] = {}
        if own:
            steps = ours.steps_of(out)
            startup = read_summary(out / "run")["startup"]
        else:
            steps = [json.loads(line)["step"] for line in printed.splitlines() if line.startswith('{"step"')]
        if len(steps) != self.settings.steps:
            raise ValueError(f"made {len(steps)} steps, expected {self.settings.steps}")
        found = [{"step": 0, **held_out.measure(rows, None)}]
        found += [{"step": step, **held_out.measure(rows, adapter)} for step, adapter in adapters.items()]
        shutil.rmtree(out)
        return {
            "recipe": recipe,
            "seed": seed,
            "system": system,
            "date": f"{datetime.datetime.now(datetime.UTC):%FT%TZ}",
            "commit": commit(ROOT),
            "device": device(gpu) if self.chosen.gpus else "CPU",
            "command": " ".join(["python", *sys.argv]),
            "at_once": self.chosen.at_once,
            # From the command to the first step, and from the last one to the end of the process.
            "start_seconds": seconds - sum(step["seconds"] for step in steps),
            **({"startup": startup} if startup else {}),
            "steps": steps,
            "held_out": found,
        }

    def our_command(self, recipe: str, seed: int, out: Path, changes: list[str]) -> list[str]:
        rows = self.folder / "data" / recipe
        arguments = (self.settings, self.model, rows, out, seed, min(self.chosen.gpus, 1))
        shared = ours.SHARED_GPU if self.chosen.at_once > 1 else ()
        return lorarl_run(out, ours.manifest(RECIPES[recipe], *arguments), [*shared, *changes])

    def teacher(self, recipe: str, gpu: int) -> Path:
        """Return the adapter that teaches a recipe, which is made once: GRPO's, by a seed that no run has."""
        with self.teaching:
            out = self.folder / f"{recipe}-teacher"
            adapter = ours.adapters_of(out, [self.settings.steps])[self.settings.steps]
            if not adapter.exists():
                self.process(self.our_command(recipe, TEACHER_SEED, out, []), gpu, out)
            return adapter

    def environment(self, gpu: int) -> dict[str, str]:
        """Return the environment of a process on one GPU, or on the CPU in a trial there."""
        return environment([gpu] if self.chosen.gpus else [])

    def process(self, command: list[str], gpu: int, out: Path) -> str:
        """Run a command; return what it prints, or show the end of it if it fails."""
        out.mkdir(parents=True, exist_ok=True)
        with (out / "errors.log").open("w+", errors="replace") as errors:
            try:
                done = subprocess.run(
                    command,
                    env=self.environment(gpu),
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    check=True,
                )
            except subprocess.CalledProcessError as error:
                errors.seek(0)
                print(f"{error.stdout[-2000:]}\n{errors.read()[-6000:]}", file=sys.stderr)
                raise
        return done.stdout


class HeldOut:
    """The process that measures adapters on held-out rows. See recipes/held_out.py."""

    def __init__(self, model: Path, rows: int, environment: dict[str, str], log: Path) -> None:
        self._rows, self._log, self._asking = rows, log.open("w"), threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "recipes.held_out", str(model)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._log.close()

    def measure(self, rows: Path, adapter: Path | None) -> dict[str, float]:
        """Return the share of right answers, and the mean score.

        Raises:
            ValueError: the process has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"data": str(rows), "rows": self._rows, "adapter": adapter and str(adapter)}
        with self._asking:
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        if not answer:
            raise ValueError(f"the process that measures ended: {Path(self._log.name).read_text()[-3000:]}")
        found: dict[str, float] = json.loads(answer)
        return found


if __name__ == "__main__":
    main()
