"""The peer's side: TRL's GRPO with vLLM in the same process and PEFT, on the same work. Prints a JSON line per step.

python -m side_by_side.trl_side MODEL SETTING STEPS '{"prompts": 64, ...}'

Processes that `accelerate launch` starts share the work, and the first one prints.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from side_by_side.work import VLLM_SHARE, Work, score

SETTINGS: dict[str, dict[str, Any]] = {
    # TRL's defaults: activations are recomputed, and old log-probabilities get their own forward pass.
    "default": {"gradient_checkpointing": True, "per_device_train_batch_size": 32},
    # What makes TRL faster without changing on-policy results: no recomputation (so smaller micro-batches), and no
    # correction for vLLM's log-probabilities.
    "best": {
        "gradient_checkpointing": False,
        "vllm_importance_sampling_correction": False,
        "per_device_train_batch_size": 16,
    },
}
SMALLER = {
    ("best", "7b"): 8,
    ("best", "gemma3-4b"): 8,
    ("best", "phi3-mini"): 8,
    ("best", "phi4-mini"): 8,
    ("best", "a3b-12"): 8,
    ("best", "7b-ragged"): 1,
    ("default", "7b-ragged"): 8,
}
"""Rows per micro-batch if as many do not fit."""


class Phases:
    """Seconds by phase. A phase within another only counts for itself."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._within: list[float] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        import torch

        torch.cuda.synchronize()
        clock = time.perf_counter()
        self._within.append(0.0)
        try:
            yield
        finally:
            torch.cuda.synchronize()
            took = time.perf_counter() - clock
            own = took - self._within.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            if self._within:
                self._within[-1] += took

    def time(self, owner: Any, method: str, name: str | Callable[[], str]) -> None:
        """Count the seconds of a method as those of a phase."""
        original = getattr(owner, method)

        def timed(*arguments: Any, **options: Any) -> Any:
            with self.phase(name() if callable(name) else name):
                return original(*arguments, **options)

        setattr(owner, method, timed)


def main() -> None:
    model, setting, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    work = Work(**json.loads(sys.argv[4]))
    os.environ.update(
        HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", WANDB_DISABLED="true", VLLM_ENABLE_V1_MULTIPROCESSING="0"
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import torch
    from transformers import TrainerCallback

    trainer = make_trainer(model, setting, steps, work)
    phases = Phases()
    engine = trainer.vllm_generation
    phases.time(engine, "sync_weights", "sync")
    phases.time(engine.llm, "generate", "generate")
    phases.time(engine.llm, "sleep", "sleep")
    phases.time(engine.llm, "wake_up", "wake")
    phases.time(trainer, "_calculate_rewards", "reward")
    # Without gradients these are the old log-probabilities, with gradients the training's own forward pass.
    phases.time(
        trainer,
        "_get_per_token_logps_and_entropies",
        lambda: "forward_backward" if torch.is_grad_enabled() else "old_logprobs",
    )
    phases.time(trainer, "_generate_and_score_completions", "other")
    phases.time(trainer, "training_step", "forward_backward")

    class Steps(TrainerCallback):
        started = time.perf_counter()
        tokens = 0.0

        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            self.optimizer_started = time.perf_counter()

        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            phases.seconds["optimizer"] = time.perf_counter() - self.optimizer_started

        def on_step_end(self, *_: Any, **__: Any) -> None:
            torch.cuda.synchronize()
            now = time.perf_counter()
            seconds = now - self.started
            phases.seconds["other"] = max(
                0.0, seconds - sum(s for name, s in phases.seconds.items() if name != "other")
            )
            total = float(trainer.state.num_input_tokens_seen)
            lengths = trainer._metrics["train"]["completions/mean_length"]
            row = {
                "seconds": seconds,
                "tokens": total - self.tokens,
                "response_tokens": lengths[-1] * work.completions,
                **phases.seconds,
            }
            if trainer.accelerator.is_main_process:
                print(json.dumps({"step": row}), flush=True)
            self.tokens = total
            phases.seconds.clear()
            self.started = time.perf_counter()

    trainer.add_callback(Steps())
    Steps.started = time.perf_counter()
    trainer.train()


def make_trainer(model: Path, setting: str, steps: int, work: Work) -> Any:
    """Return TRL's trainer on this work, with one update per step."""
    import pyarrow
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    chosen = dict(SETTINGS[setting])
    rows = chosen["per_device_train_batch_size"] = SMALLER.get(
        (setting, model.name), chosen["per_device_train_batch_size"]
    )
    prompts = [json.loads(line)["prompt"] for line in (model / work.prompts_file).read_text().splitlines()]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-"),
        gradient_accumulation_steps=work.completions // rows // int(os.environ.get("WORLD_SIZE", "1")),
        num_generations=work.group,
        max_completion_length=work.response_tokens,
        max_steps=steps,
        learning_rate=work.learning_rate,
        bf16=True,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=VLLM_SHARE,
        vllm_enable_sleep_mode=True,
        vllm_max_model_length=max(512, work.tokens),
        logging_steps=1,
        report_to=[],
        beta=0.0,
        temperature=work.temperature,
        save_strategy="no",
        model_init_kwargs={"dtype": "bfloat16"},
        **chosen,
    )
    return GRPOTrainer(
        model=str(model),
        reward_funcs=lambda completions, **_: [score(None, text, None, None) for text in completions],
        args=config,
        # Without a fingerprint, a data set is named by pickling what made it. That fails for packages outside of
        # site-packages.
        train_dataset=Dataset(pyarrow.table({"prompt": prompts}), fingerprint="prompts"),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(r=work.rank, lora_alpha=work.alpha, target_modules="all-linear", task_type="CAUSAL_LM"),
    )


if __name__ == "__main__":
    main()
