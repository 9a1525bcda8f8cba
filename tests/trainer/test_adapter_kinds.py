"""rsLoRA and DoRA: the trainer, PEFT and vLLM mean the same by the published files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from lorarl_trainer.lora.files import CONFIG_FILE, MAGNITUDE
from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.samples.sample import Sample
from support.in_process import Colocated, prompts, samples_of, update_request, worst
from support.loop_runs import adapter_digest, rows, run_in_process
from support.transformers_side import hf_logprobs, mean_logprob_gradients, peft_model
from trainer.test_parity import TOLERANCE


@pytest.mark.parametrize(
    ("backend", "adapter_type"), [("megatron", "canonical_lora"), ("megatron", "lora"), ("fsdp", "canonical_lora")]
)
def test_rslora_scales_alike_in_trainer_vllm_and_peft(
    colocated, tmp_path: Path, backend: str, adapter_type: str
) -> None:
    fields = {"adapter__type": adapter_type, "adapter__rslora": True, "rollout__adapterSync": "disk"}
    worker: Colocated = colocated("qwen2", trainer__backend=backend, **fields)
    worker.randomise(scale=0.05)
    worker.sync()
    samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
    folder = worker.write_peft(tmp_path / "adapter")
    assert json.loads((folder / CONFIG_FILE).read_text())["use_rslora"] is True
    model = peft_model(worker.model, folder)
    peft = hf_logprobs(model, samples)
    assert worst(worker.trainer_logprobs(samples), peft) < TOLERANCE
    assert worst([c.logprobs for c in rollouts], peft) < TOLERANCE, "vLLM's own loader has read the files"
    plain = model.base_model.model.model.layers[0].self_attn.q_proj
    assert plain.scaling["default"] == pytest.approx(16 / 8**0.5)


def dora(colocated, out: Path, **changes: object) -> Colocated:
    fields = {"algorithm": "{type: sft}", "reward": "null", "adapter__dora": True, "trainer__backend": None}
    out.mkdir(exist_ok=True)
    worker: Colocated = colocated("qwen2", **fields, trainer__steps=4, **changes)
    worker.out = out
    worker.job.spec.checkpoint.__dict__["uri"] = f"file://{out}/checkpoints"  # frozen: only tests change it
    return worker


def drawn(count: int = 6) -> list[Sample]:
    stream = np.random.default_rng(5)
    return [Sample(stream.integers(4, 60, size=9 + index), prompt_length=4, advantage=1.0) for index in range(count)]


def test_dora_is_peft_s_in_log_probabilities_and_gradients(colocated, tmp_path: Path) -> None:
    worker = dora(colocated, tmp_path / "run", trainer__recompute="full")
    assert any("Megatron does not train DoRA" in warning for warning in worker.built.warnings)
    worker.randomise()
    samples, folder = drawn(), worker.write_peft(tmp_path / "adapter")
    model = peft_model(worker.model, folder, trainable=True)
    base = AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32).eval()
    assert worst(worker.trainer_logprobs(samples), hf_logprobs(model, samples)) < TOLERANCE
    assert worst(hf_logprobs(base, samples), hf_logprobs(model, samples)) > 0.1
    backend = worker.worker.backend
    backend._trainer.forward_backward(update_request(samples, loss=LossChoice("cross_entropy"), on_policy=False))
    found = backend.layout.gather([gradient.clone() for gradient in backend.optimizer.gradients])
    names = {name for name in found if name.endswith(MAGNITUDE)}
    assert len(names) == len(worker.built.modules)
    theirs = mean_logprob_gradients(model, samples)
    assert theirs.keys() == found.keys()
    for name, gradient in theirs.items():
        assert torch.allclose(found[name], gradient, atol=1e-5), name


def test_dora_starts_at_the_base_and_resumes_to_the_same_bytes(colocated, tmp_path: Path) -> None:
    new = dora(colocated, tmp_path / "new")
    base = AutoModelForCausalLM.from_pretrained(new.model, dtype=torch.float32).eval()
    assert worst(new.trainer_logprobs(drawn()), hf_logprobs(base, drawn())) < TOLERANCE
    before = new.export()
    answers = rows(answer=[7, 2])
    asyncio.run(run_in_process(dora(colocated, tmp_path / "whole"), train_rows=answers))
    for stop_after in (2, None):
        worker = dora(colocated, tmp_path / "parts")
        asyncio.run(run_in_process(worker, train_rows=answers, stop_after=stop_after))
    assert adapter_digest(tmp_path / "parts") == adapter_digest(tmp_path / "whole")
    assert all(not torch.equal(before[name], tensor) for name, tensor in worker.export().items())
