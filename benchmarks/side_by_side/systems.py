"""Runs a step on either system, or a look inside lorarl's worker, each in its own process, and returns its figures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lorarl_trainer.launch import bound
from side_by_side import ours
from side_by_side.memory import PeakGpuMemory
from side_by_side.processes import environment
from side_by_side.work import Work

TMPFS = Path("/dev/shm")
ROOM = 40 << 30
"""Twice the size of the models 0.5b and 7b."""
NO_TRL = "TRL is not installed. Run `uv pip install --no-deps trl==1.16.0` in the GPU environment."


class Systems:
    """Both systems on the models in a folder. All of a benchmark's runs share its minutes.

    Attributes:
        models: the folder of the models.
        warmup, steps: steps before the measured ones, and these, of each run.
        minutes: after which a run is stopped, and no other one starts; None if all may run.
        folder: of the runs. `close` removes it.
    """

    def __init__(self, models: Path, warmup: int, steps: int, minutes: float | None = None) -> None:
        self.models, self.warmup, self.steps, self.minutes = models, warmup, steps, minutes
        self.started, self.folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="lorarl-bench-"))

    def prepare(self, gpu: Sequence[int], *sizes: str) -> dict[str, Any]:
        """Make models unless they are there; return the facts of the machine, and of products on a GPU."""
        return last_object(self.process("side_by_side.prepare", gpu, str(self.models), *sizes))

    def ours(self, size: str, gpus: Sequence[int], work: Work, settings: Sequence[str] = ()) -> dict[str, Any]:
        """Run lorarl on these GPUs, or on the CPU where there are none; `settings` are for `--set`."""
        folder = Path(tempfile.mkdtemp(prefix=f"ours-{size}-", dir=self.folder))
        job = ours.manifest(self.models / size, folder, work, len(gpus), self.warmup + self.steps)
        clock = time.monotonic()
        with PeakGpuMemory(gpus[0] if gpus else None) as memory:
            try:
                self.command(ours.command(folder, job, settings), gpus)
            except subprocess.CalledProcessError:
                print(ours.log_tail(folder), file=sys.stderr)
                raise
        ran = ours.work_of(folder, work)
        steps = ours.steps_of(folder, ran)
        startup = time.monotonic() - clock - sum(step["seconds"] for step in steps)
        return {
            "system": "lorarl",
            "setting": " ".join(settings),
            **self.described(size, len(gpus), ran, steps, memory),
            "startup_seconds": startup,
        }

    def trl(self, size: str, setting: str, gpus: Sequence[int], work: Work) -> dict[str, Any]:
        """Run TRL on these GPUs: with accelerate, a process for each, if they are several."""
        if find_spec("trl") is None:
            raise ValueError(NO_TRL)
        module, arguments = "side_by_side.trl_side", [str(self.models / size), setting, str(self.warmup + self.steps)]
        if len(gpus) > 1:
            arguments = [*ACCELERATE, "--num_processes", str(len(gpus)), "--module", module, *arguments]
            module = "accelerate.commands.launch"
        with PeakGpuMemory(gpus[0]) as memory:
            lines = self.process(module, gpus, *arguments, json.dumps(vars(work)))
        made = [json.loads(line)["step"] for line in lines if line.startswith('{"step"')]
        return {"system": "trl", "setting": setting, **self.described(size, len(gpus), work, made, memory)}

    def device(self, size: str, gpu: int, settings: Sequence[str] = ()) -> dict[str, Any]:
        """Look inside lorarl's worker."""
        folder = self.folder / f"device-{size}"
        overrides = [*settings, "spec.rollout.offload=[kv_cache]"]
        job = ours.manifest(self.models / size, folder, Work(), 1, 1)
        *_, manifest, _, _ = ours.command(folder, job, [])
        lines = self.process("side_by_side.device_side", (gpu,), str(self.models / size), manifest, *overrides)
        return {"system": "device", "size": size, "gpus": 1, **last_object(lines)}

    def described(
        self, size: str, gpus: int, work: Work, steps: Sequence[Any], memory: PeakGpuMemory
    ) -> dict[str, Any]:
        """Return a run's record.

        Raises:
            ValueError: it made another number of steps.
        """
        measured = list(steps[self.warmup :])
        if len(measured) != self.steps:
            raise ValueError(f"{len(steps)} steps were made, expected {self.warmup + self.steps}")
        about = {"size": size, "gpus": gpus, "completions": work.completions, "work": vars(work)}
        return {
            **about,
            "warmup": list(steps[: self.warmup]),
            "steps": measured,
            "peak_memory_bytes": memory.peak_bytes,
        }

    def process(self, module: str, gpus: Sequence[int], *arguments: str) -> list[str]:
        """Run a module of the benchmark and return the lines that it prints."""
        return self.command([sys.executable, "-m", module, *arguments], gpus).splitlines()

    def command(self, command: Sequence[str], gpus: Sequence[int]) -> str:
        """Run a command on these GPUs, with the product and the benchmark on its path; show its errors if it fails.

        It ends if the benchmark is killed, so that the GPUs are free when the benchmark continues.

        Raises:
            subprocess.SubprocessError: it failed, or the minutes are over.
        """
        left = None if self.minutes is None else self.minutes * 60 - (time.monotonic() - self.started)
        if left is not None and left <= 0:
            raise subprocess.SubprocessError(f"left out: {self.minutes:g} minutes are over")
        with tempfile.TemporaryFile("w+", errors="replace", dir=self.folder) as errors:
            try:
                run = subprocess.run(
                    [sys.executable, "-I", bound.__file__, str(os.getpid()), *command],
                    env=environment(gpus),
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    timeout=left,
                    check=True,
                )
            except subprocess.TimeoutExpired as error:
                raise subprocess.SubprocessError(f"cut off: {self.minutes:g} minutes are over") from error
            except subprocess.CalledProcessError as error:
                errors.seek(0)
                print(f"{error.stdout[-2000:]}\n{errors.read()[-6000:]}", file=sys.stderr)
                raise
        return run.stdout

    def close(self) -> None:
        """Remove what the runs wrote."""
        shutil.rmtree(self.folder)


ACCELERATE = ("--multi_gpu", "--num_machines", "1", "--mixed_precision", "bf16", "--dynamo_backend", "no")


def visible_gpus(count: int) -> list[int]:
    """Return the first GPUs that may be used, by their numbers on the machine."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [int(name) for name in named.split(",")][:count] if named else list(range(count))


def last_object(lines: Sequence[str]) -> dict[str, Any]:
    """Return the last JSON object that was printed, because libraries print too.

    Raises:
        IndexError: there is none.
    """
    found: dict[str, Any] = json.loads([line for line in lines if line.startswith("{")][-1])
    return found


def model_folder() -> Path:
    """Return a folder in shared memory if the models fit, otherwise a temporary folder."""
    room = shutil.disk_usage(TMPFS).free if TMPFS.is_dir() else 0
    return Path(tempfile.gettempdir() if room < ROOM else TMPFS, "lorarl-bench-models")


def brief(run: dict[str, Any]) -> str:
    """Return a run in one line."""
    if "steps" not in run:
        return ", ".join(f"{name} {value:.3f}" for name, value in run.items() if isinstance(value, float))
    from side_by_side.report import mean

    phases = {name: mean(run, name) for name in run["steps"][0]}
    return ", ".join(f"{name} {value:.3f}" for name, value in phases.items())
