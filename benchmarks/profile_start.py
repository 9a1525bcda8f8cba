"""Where the time of a start's single parts, and of a run's end, goes on this machine.

python benchmarks/profile_start.py weights --size 7b      the base model's files to the device: as Megatron-Bridge reads them, and as we do
python benchmarks/profile_start.py imports                torch, Megatron and vLLM in a fresh process, with and without quick_imports
python benchmarks/profile_start.py end --size 0.5b        `lorarl run` of two steps; from its last checkpoint on, every second what the
                                                          driver's threads are at, and in which state its processes are
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATHS = [str(ROOT / folder) for folder in ("benchmarks", "crds", "trainer_image")]
sys.path[:0] = PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])

from bench_gpu import model_folder  # noqa: E402
from side_by_side import ours  # noqa: E402
from side_by_side.work import Work  # noqa: E402

STACKS = """import faulthandler, os, signal, sys
if sys.argv[:1] == ["-m"] or "run" in sys.argv:
    faulthandler.register(signal.SIGUSR1, file=open(os.environ["STACKS"], "a"), all_threads=True)
"""
"""sitecustomize.py: on SIGUSR1 a process writes down what its threads are at."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("weights", "imports", "end"))
    parser.add_argument("--size", default="0.5b")
    parser.add_argument("--models", type=Path, help="folder for the models  [default: shared memory where there is room]")
    parser.add_argument("--gpus", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.what == "imports":
        imports(chosen.gpus)
        return
    models: Path = chosen.models or model_folder()
    command = [sys.executable, "-c", "from side_by_side.prepare import main; main()", str(models), chosen.size]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (weights if chosen.what == "weights" else end)(models / chosen.size, chosen.gpus)


def imports(gpus: int) -> None:
    """Each in a process of its own, twice: the first may still compile .pyc files or read them from disk."""
    code = """
import os, sys, time, contextlib
from lorarl_trainer.platforms import get_platform
from lorarl_trainer.platforms.imports import quick_imports
platform = get_platform(int(sys.argv[1])); os.environ.update(platform.environment(8))
marks = [time.perf_counter()]
with quick_imports() if sys.argv[2] == "quick" else contextlib.nullcontext():
    import torch; marks.append(time.perf_counter())
    platform.prepare_megatron(); import megatron.bridge; marks.append(time.perf_counter())
    from lorarl_trainer.rollout.engine import import_vllm
    import_vllm(); marks.append(time.perf_counter())
print(sys.argv[2], ", ".join(f"{name} {b - a:.1f} s" for name, a, b in zip(("torch", "Megatron", "vLLM"), marks, marks[1:])))
"""
    for way in ("plain", "plain", "quick", "quick"):
        done = subprocess.run([sys.executable, "-c", code, str(gpus), way], capture_output=True, text=True, check=True)
        print(done.stdout.splitlines()[-1], flush=True)


def weights(folder: Path, gpus: int) -> None:
    """Every tensor once; gate and up are joined, as Megatron has them."""
    import torch
    from safetensors import safe_open

    from lorarl_trainer.megatron_lora.weights import WeightFiles

    device = torch.device("cuda" if gpus else "cpu")
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    where = {name: file for file in files for name in safe_open(file, "pt").keys()}  # noqa: SIM118 - it is no dict
    groups = [[name, name.replace("gate_proj", "up_proj")] if "gate_proj" in name else [name] for name in where if "up_proj" not in name]

    def mapped(names: list[str]) -> dict[str, torch.Tensor]:
        found = {}
        for name in names:
            with safe_open(where[name], "pt", device="cpu") as opened:
                found[name] = opened.get_tensor(name)
        return found

    def timed(what: str, load: Callable[[list[str]], dict[str, torch.Tensor]]) -> None:
        clock, target = time.perf_counter(), torch.empty(1)
        for names in groups:
            found = load(names)
            tensor = torch.cat(list(found.values())) if len(names) > 1 else found[names[0]]
            target = torch.empty(tensor.shape, dtype=tensor.dtype, device=device).copy_(tensor)
        target.sum().item()
        seconds = time.perf_counter() - clock
        print(f"{what}: {size / 1e9:.1f} GB in {seconds:.2f} s, {size / seconds / 1e9:.1f} GB/s", flush=True)

    torch.ones(1, device=device)
    for _ in range(2):
        timed("mapped, one thread", mapped)
        reader = WeightFiles(folder, device, mapped)
        timed("read by eight threads", reader.load)
        reader.close()


def end(folder: Path, gpus: int) -> None:
    """The stacks are of the driver: its workers are being killed then."""
    with tempfile.TemporaryDirectory(prefix="lorarl-end-") as name:
        place = Path(name)
        (place / "sitecustomize.py").write_text(STACKS)
        work = Work() if gpus else Work(prompts=4, group=4, response_tokens=8)
        job = ours.manifest(folder, place, work, gpus, 2)
        job["spec"]["reward"] = {"type": "exact"}
        stacks = place / "stacks.txt"
        path = os.pathsep.join([name, os.environ["PYTHONPATH"]])
        environment = {**os.environ, "PYTHONPATH": path, "STACKS": str(stacks)}
        process = subprocess.Popen(ours.command(place, job, []), env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        began, over = time.perf_counter(), threading.Event()
        for line in process.stdout:
            print(f"{time.perf_counter() - began:7.2f}  {line}", end="", flush=True)
            if "  checkpoint " in line:
                threading.Thread(target=look, args=(process.pid, over, began), daemon=True).start()
        print(f"{time.perf_counter() - began:7.2f}  its output is closed")
        process.wait()
        over.set()
        print(f"{time.perf_counter() - began:7.2f}  it has ended")
        lines = stacks.read_text().splitlines() if stacks.exists() else ["it ended within a second"]
        print("\n".join(line for line in lines if "importlib" not in line))


def look(pid: int, over: threading.Event, began: float) -> None:
    """Once a second."""
    while not over.wait(1.0):
        os.kill(pid, signal.SIGUSR1)
        states = subprocess.run(["ps", "-eo", "pid,ppid,stat,wchan:20,comm"], capture_output=True, text=True, check=False).stdout
        shown = [line for line in states.splitlines() if "ray" in line or "raylet" in line or "gcs" in line or " D" in line]
        print(f"{time.perf_counter() - began:7.2f}  still there:\n" + "\n".join(shown), flush=True)


if __name__ == "__main__":
    main()
