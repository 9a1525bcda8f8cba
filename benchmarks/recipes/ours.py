"""lorarl's side of a recipe: `lorarl run` on a manifest, as a user starts it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lorarl_trainer.progress import METRICS, read_rows
from recipes.tasks import DPO_BETA, DPO_LEARNING_RATE, Recipe, Settings

NAME = "recipe"
SHARED_GPU = ("spec.rollout.gpuMemoryFraction=0.05", "spec.trainer.tokensPerMicroBatch=4096")
"""Overrides for a run that leaves most of a GPU to others. They change no sample's weight in an update."""

TEACHER, DATA = "TEACHER", "DATA"
"""Stand in a change below for the folder of an adapter that GRPO trained on the same recipe, and for its rows."""
TWO_UPDATES = "spec.algorithm.updatesPerStep=2"
ALGORITHMS: Mapping[str, Sequence[str]] = {
    "dapo": (TWO_UPDATES,),
    "gspo": (TWO_UPDATES,),
    "rloo": (),
    "ppo": (
        "spec.algorithm.updatesPerStep=4",
        "spec.algorithm.ppo={criticLearningRate: 1.0e-3, criticWarmupSteps: 5}",
    ),
    "dpo": (
        "spec.reward=null",
        "spec.algorithm.groupSize=null",
        "spec.rollout.gpuMemoryFraction=null",  # nothing is generated
        f"spec.algorithm.dpo={{beta: {DPO_BETA}}}",
        f"spec.trainer.learningRate={DPO_LEARNING_RATE}",
        f"spec.data.train={{uri: 'file:{DATA}/pairs.jsonl'}}",
    ),
    "distillation": ("spec.reward=null", f"spec.algorithm.distillation={{adapter: 'file:{TEACHER}'}}"),
}
"""What a job of another algorithm than GRPO has besides its type."""
METRICS_OF_STEPS = {"reward": "reward_mean", "drift": "mean_abs_logprob_diff", "kl": "rollout_kl"}
SYSTEMS = ("lorarl", "lorarl-fsdp", *(f"lorarl-{name}" for name in ALGORITHMS))


def changes(system: str, data: Path, teacher: Path | None = None) -> list[str]:
    """Return the overrides that make a system's job of `manifest`.

    Args:
        data: folder of the recipe's rows.
        teacher: folder of the teacher's adapter, for distillation.
    """
    _, _, name = system.partition("-")
    if name not in ALGORITHMS:
        return [f"spec.trainer.backend={name}"] if name else []
    besides = [change.replace(TEACHER, str(teacher)).replace(DATA, str(data)) for change in ALGORITHMS[name]]
    return [f"spec.algorithm.type={name}", *besides]


def manifest(recipe: Recipe, settings: Settings, model: Path, data: Path, out: Path, seed: int, gpus: int) -> Any:
    """Return the job. It is what a user would write, with a checkpoint wherever the held-out rows are measured."""
    return {
        "apiVersion": "lorarl.io/v1alpha1",
        "kind": "LoRARLJob",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"uri": f"file://{model}"},
            "adapter": {"rank": settings.rank, "alpha": settings.alpha, "targetModules": ["all-linear"]},
            "algorithm": {"type": "grpo", "groupSize": settings.group},
            "reward": {"function": "recipes.reward:score"},
            "data": {"train": {"uri": f"file://{data}/train.jsonl"}},
            "rollout": {
                "promptsPerStep": settings.prompts,
                "maxPromptTokens": settings.prompt_tokens,
                "maxResponseTokens": recipe.response_tokens,
                "temperature": settings.temperature,
            },
            "trainer": {"steps": settings.steps, "learningRate": settings.learning_rate, "seed": seed},
            "checkpoint": {
                "uri": f"file://{out}/checkpoints",
                "every": settings.every,
                "keep": settings.steps,
                "resume": "Never",
            },
            "cluster": {"gpusPerNode": gpus},
        },
    }


def steps_of(out: Path) -> list[dict[str, float]]:
    """Return the steps of a run: seconds without writing checkpoints, mean reward, and how far its engines differ."""
    return [
        {
            "seconds": sum(seconds for phase, seconds in row["seconds"].items() if phase != "checkpoint"),
            # Distillation and dpo have no reward, and dpo has no rollouts.
            **{name: row[metric] for name, metric in METRICS_OF_STEPS.items() if metric in row},
        }
        for row in read_rows(out / "run" / METRICS)
        if "seconds" in row
    ]


def adapters_of(out: Path, steps: Sequence[int]) -> dict[int, Path]:
    """Return the published adapters, by step."""
    return {step: out / "checkpoints" / NAME / f"iter_{step:07d}" / "lora_adapter" for step in steps}
