"""Teaches the toy model of `make demo-toy` by dpo with several beta, also with TRL, and writes that into docs.

python benchmarks/bench_dpo.py               three seeds on the CPU: ten minutes
python benchmarks/bench_dpo.py --trl         TRL's curve of one run too; it needs `uv pip install --no-deps trl==1.16.0`
python benchmarks/bench_dpo.py --render      writes the tables again

TRL begins with the adapter that lorarl begins with, and takes the same pairs in the same order.
Runs that were made are kept, so the same command makes what is missing.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("crds", "trainer_image")]

from figures import write_between  # noqa: E402
from lorarl_trainer.data.order import DataOrder  # noqa: E402
from lorarl_trainer.progress import METRICS, read_rows  # noqa: E402
from toy import (  # noqa: E402
    OUT,
    Run,
    last_range,
    lorarl_run,
    make_base,
    mean_by_step,
    options,
    read_figures,
    write_figures,
)

JOB = ROOT / "examples/dpo-cpu.yaml"
RAW = ROOT / "benchmarks/results/dpo.json"
DOCUMENT = ROOT / "docs/algorithms.md"
BEGIN, END = "<!-- dpo: written by benchmarks/bench_dpo.py -->", "<!-- end of dpo -->"
BETAS = (0.1, 0.3, 1.0, 3.0)
STEPS, PAIRS, LEARNING_RATE = 30, 128, 5.0e-4
"""Those of the example."""
CURVES = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "rewards/chosen": "preference/chosen",
    "rewards/rejected": "preference/rejected",
}
"""What both write, by TRL's names."""
TRL_BETA, TRL_SEED = 0.1, 0


def main() -> None:
    parser = options(__doc__, RAW)
    parser.add_argument("--trl", action="store_true", help="also train with TRL")
    chosen = parser.parse_args()
    figures: dict[str, Any] = read_figures(chosen.raw, {"runs": [], "trl": None})
    if not chosen.render:
        make_base()
        made = {(run["beta"], run["seed"]) for run in figures["runs"]}
        for beta, seed in ((beta, seed) for seed in chosen.seeds for beta in BETAS):
            if (beta, seed) not in made:
                with tempfile.TemporaryDirectory(prefix="lorarl-dpo-") as folder:
                    figures["runs"].append(run_of(beta, seed, learn(Path(folder), beta, seed)))
                write_figures(chosen.raw, figures)
        if chosen.trl and not figures["trl"]:
            with tempfile.TemporaryDirectory(prefix="lorarl-trl-") as folder:
                figures["trl"] = by_trl(Path(folder))
            write_figures(chosen.raw, figures)
    write_between(DOCUMENT, BEGIN, END, lambda: rendered(figures["runs"], figures["trl"]))


def learn(folder: Path, beta: float, seed: int, *more: str) -> Path:
    """Train once; return the run's folder."""
    changes = [f"checkpoint.uri=file:{folder}/checkpoints", f"trainer.seed={seed}", f"algorithm.dpo.beta={beta}", *more]
    lorarl_run(JOB, "--out", f"{folder}/run", changes=[f"spec.{change}" for change in changes])
    return folder / "run"


def run_of(beta: float, seed: int, out: Path) -> Run:
    """Return the held-out accuracy by step, that of pairs, and the curves."""
    rows = read_rows(out / METRICS)
    right = {str(row["step"]): row["eval_answers/score"] for row in rows if "eval_answers/score" in row}
    pairs = {str(row["step"]): row["eval_score"] for row in rows if row.get("eval_score") is not None}
    steps = [row for row in rows if "loss" in row]
    curves = {name: [row[name] for row in steps] for name in CURVES.values()}
    return {"beta": beta, "seed": seed, "right": right, "pairs": pairs, "curves": curves}


def by_trl(folder: Path) -> Run:
    """Train with TRL's DPOTrainer on what lorarl's run of the same seed takes; return its curves by our names."""
    import torch
    from datasets import Dataset
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    class InOrder(DPOTrainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    learn(folder, TRL_BETA, TRL_SEED, "trainer.steps=1", "trainer.learningRate=1.0e-12")  # leaves the first adapter
    (first,) = (folder / "checkpoints").glob("*/iter_*/lora_adapter")
    rows = [json.loads(line) for line in (OUT / "pairs.jsonl").read_text().splitlines()]
    order = DataOrder(len(rows), TRL_SEED).take(0, STEPS * PAIRS)
    base = AutoModelForCausalLM.from_pretrained(OUT / "base", dtype=torch.float32)
    trainer = InOrder(
        model=PeftModel.from_pretrained(base, first, is_trainable=True),
        args=DPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=PAIRS,
            max_steps=STEPS,
            beta=TRL_BETA,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=1.0,
            optim="adamw_torch",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list([rows[index] for index in order]),
        processing_class=AutoTokenizer.from_pretrained(OUT / "base"),
    )
    trainer.train()
    steps = [row for row in trainer.state.log_history if "loss" in row]
    curves = {ours: [float(row[theirs]) for row in steps] for theirs, ours in CURVES.items()}
    return {"beta": TRL_BETA, "seed": TRL_SEED, "curves": curves}


def differences(runs: Sequence[Run], peer: Run) -> Iterator[tuple[str, float]]:
    """Yield the largest difference of each curve from the other system's."""
    (mine,) = (run for run in runs if (run["beta"], run["seed"]) == (peer["beta"], peer["seed"]))
    for name, theirs in peer["curves"].items():
        yield name, max(abs(a - b) for a, b in zip(mine["curves"][name], theirs, strict=True))


def rendered(runs: Sequence[Run], peer: Run | None) -> str:
    """Return the table, and how far TRL's curve is from ours."""
    if not peer:
        return table(runs)
    off = dict(differences(runs, peer))
    said = (
        f"TRL's trainer falls alike. On the same pairs from the same first adapter (`beta` {peer['beta']}, seed "
        f"{peer['seed']}) its loss over {STEPS} steps differs from lorarl's by at most {off['loss']:.0e}, its "
        f"gradient's norm by {off['grad_norm']:.0e}."
    )
    return f"{table(runs)}\n\n{said}"


def table(runs: Sequence[Run]) -> str:
    """Return the table: means over the seeds, and the range after the last step."""
    steps = list(runs[0]["right"])
    lines = [
        f"| `beta` | seeds | {' | '.join(f'step {step}' for step in steps)} | after the last, range "
        "| pairs in the right order | log p of the chosen answer, change | of the rejected one |",
        "|---|---" + "|---" * len(steps) + "|---|---|---|---|",
    ]
    for beta in BETAS:
        if not (found := [run for run in runs if run["beta"] == beta]):
            continue
        pairs = statistics.fmean(run["pairs"][steps[-1]] for run in found)
        chosen, rejected = (
            statistics.fmean(run["curves"][f"preference/{which}"][-1] for run in found) / beta
            for which in ("chosen", "rejected")
        )
        lines.append(
            f"| {beta:g} | {len(found)} | {mean_by_step(found, steps)} | {last_range(found, steps)} "
            f"| {pairs:.1%} | {chosen:+.1f} | {rejected:+.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
