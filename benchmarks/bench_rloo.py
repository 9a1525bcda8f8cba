"""Teaches the toy model of `make demo-toy` by rloo with lorarl and with TRL, on the same prompts; prints both.

uv pip install --no-deps trl==1.16.0
python benchmarks/bench_rloo.py               three seeds on the CPU: five minutes

TRL begins with the adapter that lorarl begins with, takes the same prompts in the same order, and samples for itself.
Its loss adds up the tokens of a completion, which is `lossAggregation: constant`. Both write out greedily what they
have learned: TRL's adapter with transformers. Runs that were made are kept, so the same command makes what is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image")]

from lorarl_trainer.data.order import DataOrder  # noqa: E402
from lorarl_trainer.progress import METRICS, read_rows  # noqa: E402

JOB = ROOT / "examples/addition-cpu.yaml"
OUT = ROOT / "out/addition"
RAW = ROOT / "benchmarks/results/rloo.json"
STEPS, PROMPTS, GROUP, LEARNING_RATE, EVERY, TOKENS = 30, 32, 8, 5.0e-4, 10, 5
"""Those of the example."""
RLOO = ("algorithm.type=rloo", "algorithm.lossAggregation=constant")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--raw", type=Path, default=RAW, help="figures, to which these are added")
    chosen = parser.parse_args()
    subprocess.run([sys.executable, str(ROOT / "examples/addition/make_base.py"), "--out", str(OUT)], check=True)
    runs: list[dict[str, Any]] = json.loads(chosen.raw.read_text()) if chosen.raw.exists() else []
    made = {(run["system"], run["seed"]) for run in runs}
    for seed in chosen.seeds:
        for system, teach in (("lorarl", by_lorarl), ("trl", by_trl)):
            if (system, seed) not in made:
                with tempfile.TemporaryDirectory(prefix="lorarl-rloo-") as folder:
                    runs.append({"system": system, "seed": seed, "right": teach(Path(folder), seed)})
                chosen.raw.write_text(json.dumps(runs, indent=1) + "\n")
    for run in runs:
        print(f"{run['system']:8} seed {run['seed']}  " + "  ".join(f"{score:.1%}" for score in run["right"].values()))


def by_lorarl(folder: Path, seed: int, *more: str) -> dict[str, float]:
    """Return the held-out accuracy by step."""
    changes = [f"checkpoint.uri=file:{folder}/checkpoints", f"trainer.seed={seed}", *RLOO, *more]
    settings = [part for change in changes for part in ("--set", f"spec.{change}")]
    command = [sys.executable, "-m", "lorarl_trainer.cli", "run", str(JOB), "--out", f"{folder}/run", *settings]
    subprocess.run(command, check=True, cwd=ROOT)
    rows = read_rows(folder / "run" / METRICS)
    return {str(row["step"]): float(row["eval_score"]) for row in rows if row.get("eval_score") is not None}


def by_trl(folder: Path, seed: int) -> dict[str, float]:
    """Train with TRL's RLOOTrainer; return the held-out accuracy by step."""
    import torch
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import RLOOConfig, RLOOTrainer

    by_lorarl(folder, seed, "trainer.steps=1", "trainer.learningRate=1.0e-12")  # leaves the first adapter
    (first,) = (folder / "checkpoints").glob("*/iter_*/lora_adapter")
    rows = rows_of(OUT / "train.jsonl")
    tokenizer = AutoTokenizer.from_pretrained(OUT / "base", padding_side="left")
    base = AutoModelForCausalLM.from_pretrained(OUT / "base", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, first, is_trainable=True)
    held_out = rows_of(OUT / "held_out.jsonl")
    scores = {"0": accuracy(model, tokenizer, held_out)}

    def reward(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
        return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]

    class Measure(TrainerCallback):
        def on_step_end(self, _arguments: Any, state: Any, _control: Any, **__: Any) -> None:
            if state.global_step % EVERY == 0:
                scores[str(state.global_step)] = accuracy(model, tokenizer, held_out)

    trainer = RLOOTrainer(
        model=model,
        reward_funcs=reward,
        args=RLOOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=TOKENS,
            max_steps=STEPS,
            beta=0.0,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            optim="adamw_torch",
            shuffle_dataset=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            seed=seed,
        ),
        train_dataset=Dataset.from_list([rows[index] for index in DataOrder(len(rows), seed).take(0, STEPS * PROMPTS)]),
        processing_class=tokenizer,
        callbacks=[Measure()],
    )
    trainer.train()
    return scores


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def accuracy(model: Any, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> float:
    """Return the share of right greedy completions."""
    import torch

    was_training = model.training
    model.eval()
    inputs = tokenizer([row["prompt"] for row in rows], return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        written = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )
    model.train(was_training)
    texts = tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [text.strip() == row["answer"] for text, row in zip(texts, rows, strict=True)]
    return sum(right) / len(right)


if __name__ == "__main__":
    main()
