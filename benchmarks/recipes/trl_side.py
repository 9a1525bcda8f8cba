"""TRL's side of a recipe: GRPO, RLOO or DPO with PEFT, and vLLM in the same process. Prints a JSON line per step.

python -m recipes.trl_side RECIPE MODEL DATA OUT SEED '{"steps": 60, ...}' [corrected] [rloo] [dpo] [shared]

`corrected` is TRL's default: it weighs tokens by the difference to vLLM's log-probabilities, and reports how large that
is. Without it TRL is faster, and on policy the results are the same. `rloo` and `dpo` take these instead of GRPO; DPO
learns from the recipe's pairs, without vLLM. `shared` leaves most of a GPU to other runs.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from recipes.data import read
from recipes.reward import scored
from recipes.tasks import DPO_BETA, DPO_LEARNING_RATE, RECIPES, Recipe, Settings

DRIFT = "sampling/sampling_logp_difference/mean"
ROWS_ON_CPU, ROWS_ON_SHARED_GPU = 16, 64
"""Rows of a micro-batch there. A separate GPU takes all rows of a step at once, the fastest."""
ALL_ROWS_BYTES = 100e9
"""The least memory for that, with prompts of 192 tokens. A smaller GPU takes half of the rows."""
ENGINE_BYTES, SHARED_ENGINE_BYTES = 21e9, 8.5e9
"""What vLLM may take, of which all completions of a step need 3 GB."""


def main() -> None:
    name, model, data, out, seed, settings, *mode = sys.argv[1:]
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", WANDB_DISABLED="true")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    with socket.socket() as free:  # TRL takes the same port in every process
        free.bind(("127.0.0.1", 0))
        os.environ["MASTER_PORT"] = str(free.getsockname()[1])
    train(RECIPES[name], Path(model), Path(data), Path(out), int(seed), Settings(**json.loads(settings)), mode)


def train(recipe: Recipe, model: Path, data: Path, out: Path, seed: int, settings: Settings, mode: list[str]) -> None:
    """Train, and save the adapter wherever the held-out rows are measured."""
    import torch
    from transformers import TrainerCallback

    job = recipe, model, data, out, seed, settings
    trainer = make_dpo_trainer(*job) if "dpo" in mode else make_trainer(*job, mode)
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None

    class Steps(TrainerCallback):
        """Takes the time of each step. Saving adapters does not count."""

        started = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            wait()
            if not self.started:
                self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            wait()
            metrics = trainer._metrics["train"]
            row = {"seconds": time.perf_counter() - self.started}
            if "dpo" not in mode:
                row["reward"] = metrics["reward"][-1]
            if "corrected" in mode:
                row["drift"] = metrics[DRIFT][-1]
            print(json.dumps({"step": row}), flush=True)
            if (step := trainer.state.global_step) % settings.every == 0:
                trainer.model.save_pretrained(adapter_folder(out, step))
            self.started = time.perf_counter()

    trainer.add_callback(Steps())
    trainer.train()


def adapter_folder(out: Path, step: int) -> Path:
    return out / f"step-{step}"


def make_trainer(
    recipe: Recipe, model: Path, data: Path, out: Path, seed: int, settings: Settings, mode: list[str]
) -> Any:
    """Return TRL's trainer with the settings of the recipe, and what else makes it fastest."""
    import pyarrow
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    on_gpu = torch.cuda.is_available()
    shared = "shared" in mode
    memory = torch.cuda.mem_get_info()[1] if on_gpu else 0
    whole = settings.completions if memory > ALL_ROWS_BYTES else settings.completions // 2
    rows = ROWS_ON_CPU if not on_gpu else ROWS_ON_SHARED_GPU if shared else whole
    colocated: dict[str, Any] = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": (SHARED_ENGINE_BYTES if shared else ENGINE_BYTES) / max(memory, 1),
        "vllm_max_model_length": settings.prompt_tokens + recipe.response_tokens,
    }
    rloo = "rloo" in mode
    grpo: dict[str, Any] = {
        "loss_type": "dapo",  # the mean over all tokens of a step
        "scale_rewards": "group",
        "vllm_importance_sampling_correction": "corrected" in mode,
    }
    config = (RLOOConfig if rloo else GRPOConfig)(
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=settings.completions // rows,
        num_generations=settings.group,
        max_completion_length=recipe.response_tokens,
        temperature=settings.temperature,
        beta=0.0,
        **common(out, seed, settings, on_gpu),
        **({} if rloo else grpo),
        **(colocated if on_gpu else {}),
    )
    train_rows = read(data, "train")
    columns = {
        "prompt": [[{"role": "user", "content": row["prompt"]}] for row in train_rows],
        "answer": [row["answer"] for row in train_rows],
        "entry": [row["entry"] for row in train_rows],
    }

    def rewards(completions: Any, answer: list[str], entry: list[str], **_: Any) -> list[float]:
        texts = [completion[0]["content"] for completion in completions]
        return [scored(recipe.name, *parts) for parts in zip(texts, answer, entry, strict=True)]

    return (RLOOTrainer if rloo else GRPOTrainer)(
        model=str(model),
        reward_funcs=rewards,
        args=config,
        # Without a fingerprint, a data set is named by pickling what made it. That fails for packages outside of
        # site-packages.
        train_dataset=Dataset(pyarrow.table(columns), fingerprint=recipe.name),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=lora(settings),
    )


def make_dpo_trainer(recipe: Recipe, model: Path, data: Path, out: Path, seed: int, settings: Settings) -> Any:
    """Return TRL's DPO on the recipe's pairs, as many per step as a step of GRPO has prompts."""
    import pyarrow
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(
        model=str(model),
        args=DPOConfig(
            per_device_train_batch_size=settings.prompts,
            beta=DPO_BETA,
            max_length=settings.prompt_tokens + recipe.response_tokens,
            **common(out, seed, settings, torch.cuda.is_available()) | {"learning_rate": DPO_LEARNING_RATE},
        ),
        train_dataset=Dataset(pyarrow.Table.from_pylist(read(data, "pairs")), fingerprint=f"{recipe.name}-pairs"),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=lora(settings),
    )


def common(out: Path, seed: int, settings: Settings, on_gpu: bool) -> dict[str, Any]:
    """Return the arguments that all of TRL's trainers have."""
    return {
        "output_dir": str(out),
        "gradient_checkpointing": False,
        "max_steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "bf16": on_gpu,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "seed": seed,
        "model_init_kwargs": {"dtype": "bfloat16" if on_gpu else "float32"},
        **({} if on_gpu else {"use_cpu": True}),
    }


def lora(settings: Settings) -> Any:
    """Return PEFT's configuration of the adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


if __name__ == "__main__":
    main()
