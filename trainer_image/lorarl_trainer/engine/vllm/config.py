"""What the engine has to know about the job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.samples.sampling import Sampling

BEGUN = "begun"
"""The name by which a request says how many tokens of its completion were made before."""


@dataclass(frozen=True)
class EngineConfig:
    """What the engine has to know about the job.

    Attributes:
        plan: how it runs, on how many ranks and in how much memory.
        rank: of the adapter.
        target_modules: the linear layers that it changes, by the last part of their Hugging Face names (q_proj).
        max_prompt_tokens, max_response_tokens: together the longest sequence.
        sampling: of rollouts.
        stop_token_ids: any of them ends a completion.
        stop: texts that end a completion too.
    """

    model_path: Path
    plan: ExecutionPlan
    rank: int
    target_modules: tuple[str, ...]
    max_prompt_tokens: int
    max_response_tokens: int
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()
