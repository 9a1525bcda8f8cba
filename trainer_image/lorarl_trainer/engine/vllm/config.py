"""What the engine has to know about the job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.kernels.formats import Format
from lorarl_trainer.planning.execution import EnginePlan
from lorarl_trainer.samples.sampling import Sampling

BEGUN = "begun"
"""The name by which a request says how many tokens of its completion were made before."""


@dataclass(frozen=True)
class EngineConfig:
    """What the engine has to know about the job.

    Attributes:
        plan: how it generates, and in how much memory.
        ranks: tensor-parallel workers of it.
        dtype: of base model, adapter and activations, as PyTorch names it.
        rank: of the adapter.
        expert_rank: of the adapter on each expert's layers; None for a model without experts.
        target_modules: the linear layers that it changes, by the last part of their Hugging Face names (q_proj).
        max_prompt_tokens, max_response_tokens: together the longest sequence.
        sampling: of rollouts.
        stop_token_ids: any of them ends a completion.
        stop: texts that end a completion too.
        quantization: what the base's linear layers are held in, if they are quantized.
        records_routing: whether it says which experts each token was sent to.
    """

    model_path: Path
    plan: EnginePlan
    ranks: int
    dtype: str
    rank: int
    expert_rank: int | None
    target_modules: tuple[str, ...]
    max_prompt_tokens: int
    max_response_tokens: int
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
    quantization: Format | None = None
    records_routing: bool = False
