"""Measures what `lorarl sweep --share` saves: four short trials at one worker, and the same one by one.

python benchmarks/bench_sharing.py               20 minutes on two CPU cores; prints the rows of docs/sweeps.md
python benchmarks/bench_sharing.py --kinds ppo   one of the kinds
python benchmarks/bench_sharing.py --base DIR    a model of one's own on one GPU, with 64 prompts x 8 completions a step

Without --base, models are tiny and random: the times are those of starts, turns and steps, and nothing is learned.
Both ways run in turn, so that what else the machine does disturbs both. What is expected of sharing is one start and
the training of all trials. Both are taken from the trials that ran one by one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEPS, STEPS_ON_A_GPU = 4, 20
OVER = ["--over", "spec.trainer.seed=3,4", "--over", "spec.trainer.learningRate=1e-3,5e-3"]
TRIALS = 4
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "bos_token_id"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "pad_token_id", "eos_token_id"),
)
KINDS = {"grpo": ("grpo", 0), "ppo": ("ppo", 0), "mixture": ("grpo", 4)}
"""The algorithm of each kind, and how many experts its base model has."""


def make_base(folder: Path, experts: int) -> None:
    """Write a base model with random weights, dense if it has no experts."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sys.path.insert(0, str(ROOT / "examples/addition"))
    toy = import_module("make_base")
    toy.make_tokenizer().save_pretrained(folder)
    model = toy.make_model()
    if experts:
        sizes = {name: getattr(model.config, name) for name in _SIZES}
        of_experts = {"moe_intermediate_size": 96, "num_experts": experts, "num_experts_per_tok": 2}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **of_experts, dtype="float32"))
    model.save_pretrained(folder)


def write_job(folder: Path, algorithm: str, base: Path | None) -> Path:
    """Write a job of a few steps, and its rows. With a base model of one's own, it is one for a GPU."""
    rows = (json.dumps({"prompt": f"{number}+{number}=", "answer": str(2 * number)}) for number in range(10, 74))
    (folder / "train.jsonl").write_text("\n".join(rows) + "\n")
    group, prompts, tokens, steps = (4, 4, (16, 12), STEPS) if base is None else (8, 64, (32, 16), STEPS_ON_A_GPU)
    spec = {
        "model": {"uri": f"file:{base or folder / 'base'}"},
        "adapter": {"rank": 8, "alpha": 16, "targetModules": ["all-linear"]},
        "algorithm": {"type": algorithm, "groupSize": group},
        "reward": {"type": "exact"},
        "data": {"train": {"uri": f"file:{folder / 'train.jsonl'}"}, "chatTemplate": False},
        "rollout": {"promptsPerStep": prompts, "maxPromptTokens": tokens[0], "maxResponseTokens": tokens[1]},
        "trainer": {"steps": steps},
        "checkpoint": {"uri": f"file:{folder / 'checkpoints'}"},
        "cluster": {"gpusPerNode": 0 if base is None else 1},
    }
    job = {"apiVersion": "lorarl.io/v1alpha1", "kind": "LoRARLJob", "metadata": {"name": "bench"}, "spec": spec}
    (folder / "job.json").write_text(json.dumps(job))
    return folder / "job.json"


def sweep(folder: Path, algorithm: str, base: Path | None, *options: str) -> float:
    """Run the trials in a folder; return the seconds that they took."""
    job, began = write_job(folder, algorithm, base), time.monotonic()
    command = [sys.executable, "-m", "lorarl_trainer.cli", "sweep", str(job), *OVER, "--out", str(folder / "out")]
    subprocess.run([*command, *options], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def measure(kind: str, base: Path | None = None) -> str:
    """Return the row of a kind, or of a base model of one's own."""
    algorithm, experts = KINDS[kind]
    seconds = {}
    for name, options in (("share", ("--share", "--at-once", str(TRIALS))), ("alone", ())):
        with tempfile.TemporaryDirectory() as made:
            if base is None:
                make_base(Path(made) / "base", experts)
            seconds[name] = sweep(Path(made), algorithm, base, *options)
            files = Path(made).glob("out/*/run_summary.json")
            starts = [json.loads(file.read_text())["startup"]["first_update_seconds"] for file in files]
    start = statistics.median(starts)
    training = max(0.0, seconds["alone"] / TRIALS - start)
    expected = (
        f"{start + TRIALS * training:.0f}: one start of {start:.0f} s, and {training:.0f} s of training for each trial"
    )
    return f"| {base.name if base else kind} | {seconds['alone']:.0f} | {expected} | {seconds['share']:.0f} |"


def main() -> None:
    """Print a row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    parser.add_argument("--base", type=Path, help="folder of a base model, for one GPU")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        print(measure(kind, arguments.base and arguments.base.resolve()), flush=True)


if __name__ == "__main__":
    main()
