"""Layers with a window beside layers without one, over sequences of many windows: prompts in chunks, and decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.in_process import Colocated, samples_of, worst
from support.transformers_side import hf_logprobs, peft_model
from trainer.test_parity import TOLERANCE

PROMPT_TOKENS = (3, 70, 190, 230)


@pytest.mark.parametrize("architecture", ["gemma3_text", "olmo3"])
def test_each_layer_sees_what_it_sees_in_transformers(colocated, tmp_path: Path, architecture: str) -> None:
    lengths = {"rollout__maxPromptTokens": max(PROMPT_TOKENS), "rollout__maxResponseTokens": 12}
    worker: Colocated = colocated(architecture, trainer__backend=None, **lengths)
    worker.randomise()
    worker.sync()
    stream = np.random.default_rng(0)
    asked = [stream.integers(4, 60, size=size).tolist() for size in PROMPT_TOKENS]
    samples = samples_of(asked, rollouts := worker.generate(asked))
    expected = hf_logprobs(peft_model(worker.model, worker.write_peft(tmp_path / "adapter")), samples)
    assert worst([c.logprobs for c in rollouts], expected) < TOLERANCE
    assert worst(worker.trainer_logprobs(samples), expected) < TOLERANCE
