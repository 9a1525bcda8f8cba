"""The job that the planning tests change."""

from __future__ import annotations

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobSpec

_MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {name: planned}
spec:
  model: {uri: "hf://Qwen/Qwen2.5-7B"}
  adapter: {targetModules: [all-linear]}
  reward: {type: exact}
  data: {train: {uri: "file:train.jsonl"}}
  checkpoint: {uri: "file:checkpoints"}
"""


def cpu_job(*changes: str) -> LoRARLJobSpec:
    """A CPU job with the documented defaults, but for some fields: trainer.steps=2."""
    return load_job(_MANIFEST, [f"spec.{change}" for change in changes]).spec


def gpu_job(*changes: str, prompt_tokens: int = 64, response_tokens: int = 256, gpus: int = 1) -> LoRARLJobSpec:
    """A job of 64 prompts a step with rank 32, but for some fields."""
    return cpu_job(
        "adapter.rank=32",
        "adapter.alpha=64",
        "rollout.promptsPerStep=64",
        f"rollout.maxPromptTokens={prompt_tokens}",
        f"rollout.maxResponseTokens={response_tokens}",
        f"cluster.gpusPerNode={gpus}",
        *changes,
    )
