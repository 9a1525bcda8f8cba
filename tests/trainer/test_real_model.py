"""A pretrained model means the same in Megatron, in vLLM, and in Hugging Face with PEFT: 30 layers, a real vocabulary.

In float32 such depth rounds to some 1e-5; the tiny models of `test_parity.py` agree more closely.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.in_process import Colocated, samples_of, worst
from support.real_model import EXAMPLE, smollm2
from support.transformers_side import hf_logprobs, peft_model

WORST, MEAN = 2e-3, 5e-5
"""Largest and mean difference of log-probabilities, in nats."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Colocated]:
    """Engine and trainer on SmolLM2, with an adapter of random values."""
    folder = tmp_path_factory.mktemp("smollm2")
    started = Colocated(smollm2(), folder, rollout__maxPromptTokens=64, rollout__maxResponseTokens=12)
    started.randomise(scale=0.02)
    started.sync()
    yield started
    started.close()


@pytest.fixture(scope="module")
def chats(worker: Colocated) -> list[list[int]]:
    """Questions of the demo in the model's chat template, each twice."""
    subprocess.run([sys.executable, EXAMPLE / "make_data.py", "--out", worker.out], check=True)
    rows = [json.loads(line) for line in (worker.out / "validation.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(worker.model)
    assert tokenizer.eos_token_id == 2
    asked = [[{"role": "user", "content": row["prompt"]}] for row in rows[:6]]
    found = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]
    return [prompt for prompt in found for _ in range(2)]


def test_megatron_vllm_and_peft_agree(worker: Colocated, chats: list[list[int]], tmp_path: Path) -> None:
    rollouts = worker.generate(chats)
    samples = samples_of(chats, rollouts)
    peft = hf_logprobs(peft_model(worker.model, worker.write_peft(tmp_path / "adapter")), samples)
    for found in ([c.logprobs for c in rollouts], worker.trainer_logprobs(samples)):
        assert worst(found, peft) < WORST
        assert np.abs(np.concatenate(found) - np.concatenate(peft)).mean() < MEAN
    base = hf_logprobs(AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32).eval(), samples)
    assert worst(base, peft) > 10 * WORST, "an adapter that changes nothing would prove nothing"
