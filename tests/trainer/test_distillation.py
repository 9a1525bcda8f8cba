"""On-policy distillation from an adapter: the gradient of an independent autograd, whole runs, and resuming."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import save
from transformers import AutoModelForCausalLM

from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.credit.advantages import advantages_of
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.lora.tensor_names import PEFT_PREFIX
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.workers.worker import Worker
from support.in_process import Colocated, prompts, random_adapter, samples_of, update_request, worst
from support.loop_runs import adapter_digest, run_in_process
from support.training import relative_difference
from support.transformers_side import gradients, hf_logprobs, response_logprobs

pytestmark = pytest.mark.both_backends

TAUGHT = "{type: distillation, groupSize: 4, distillation: {adapter: 's3://team/teacher'}}"


def taught(colocated: Callable[..., Colocated], out: Path, **changes: object) -> Colocated:
    out.mkdir(exist_ok=True)
    settings = {"algorithm": TAUGHT, "reward": "null", **changes}
    worker: Colocated = colocated("qwen2-tied", **settings)
    worker.out = out
    worker.job.spec.checkpoint.__dict__["uri"] = f"file://{out}/checkpoints"  # frozen: only tests change it
    return worker


def test_the_gradient_is_that_of_autograd_through_peft(colocated, tmp_path: Path) -> None:
    """The teacher's log-probabilities are those of PEFT, and each token has its own advantage."""
    worker = taught(colocated, tmp_path, trainer__tokensPerMicroBatch=40)
    worker.load(teacher := random_adapter(worker, seed=1))
    worker.write_peft(tmp_path / "teacher")
    worker.worker.backend.keep_teacher(teacher)
    worker.load(random_adapter(worker, seed=2))
    worker.write_peft(tmp_path / "student")
    worker.sync()
    asked = [prompt for prompt in prompts(4) for _ in range(4)]
    samples = samples_of(asked, worker.generate(asked), advantage=0.0)
    before = worker.trainer_logprobs(samples)
    teacher_S = worker.worker.log_probabilities(samples, 1.0, "teacher")
    assert worst(worker.trainer_logprobs(samples), before) == 0.0, "the student is back"

    base = AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32)
    of_teacher = hf_logprobs(PeftModel.from_pretrained(base, tmp_path / "teacher").eval(), samples)
    assert worst(teacher_S, of_teacher) < 1e-4 and worst(teacher_S, before) > 0.01
    algorithm = get_algorithm(worker.spec.algorithm, 8)
    batch = StepBatch(samples, np.zeros((4, 4)), 1.0, on_policy=True, teacher_S=teacher_S)
    weighed = [
        replace(sample, advantage=advantage)
        for sample, advantage in zip(samples, advantages_of(algorithm, batch.rewards_P_G, batch), strict=True)
    ]
    trained = worker.worker.backend
    metrics, _ = trained._trainer.forward_backward(update_request(weighed, loss=algorithm.loss))
    found = trained.layout.gather([gradient.clone() for gradient in trained.optimizer.gradients])

    base = AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32)
    student = PeftModel.from_pretrained(base, tmp_path / "student", is_trainable=True).eval()
    divergence, tokens = torch.zeros(()), sum(sample.response_length for sample in samples)
    for sample, theirs in zip(samples, of_teacher, strict=True):
        mine = response_logprobs(student, torch.from_numpy(sample.tokens), sample.prompt_length)
        log_ratio = mine.detach() - torch.from_numpy(theirs)
        # The derivative of E[log_ratio] is E[log_ratio * derivative of log p]; the value is added without a gradient.
        divergence = divergence + (log_ratio * (1 + mine - mine.detach())).sum() / tokens
    divergence.backward()
    assert metrics["loss"] == pytest.approx(divergence.item(), abs=1e-5)
    assert relative_difference(found, gradients(student)) < 1e-5


def test_a_teacher_of_a_smaller_rank_says_the_same(colocated, tmp_path: Path) -> None:
    worker = taught(colocated, tmp_path)
    stream = torch.Generator().manual_seed(3)
    narrow = {
        name: 0.1 * torch.randn([2 if size == 8 else size for size in shape], generator=stream)
        for name, shape in worker.worker.backend.layout.shapes.items()
    }
    stored = InitialAdapter(save({f"{PEFT_PREFIX}{name}": tensor for name, tensor in narrow.items()}), 2, 0.5)
    wide = Worker._of_the_jobs_rank(worker.worker, stored, "spec.algorithm.distillation.adapter")
    for name, tensor in narrow.items():
        if not name.endswith("lora_A.weight"):
            continue
        up = name.replace("lora_A", "lora_B")
        torch.testing.assert_close(2.0 * wide[up] @ wide[name], 0.5 * narrow[up] @ tensor)


def test_a_run_comes_near_its_teacher_and_resumes_with_the_same_bytes(colocated, tmp_path: Path) -> None:
    settings = {"trainer__steps": 16, "trainer__learningRate": 5e-3}
    worker = taught(colocated, tmp_path / "whole", **settings)
    teacher = random_adapter(worker, seed=1)
    worker.worker.backend.keep_teacher(teacher)
    found = [step.metrics for step in asyncio.run(run_in_process(worker))]
    assert found[0]["teacher/kl"] > 0.05 and found[0]["teacher/scored_share"] == 1.0
    assert np.mean([step["teacher/kl"] for step in found[-3:]]) < 0.8 * found[0]["teacher/kl"]
    assert found[0]["loss"] == pytest.approx(found[0]["teacher/kl"], abs=1e-5)
    assert not {"reward_mean", "signal_share"} & found[0].keys()
    for stop_after in (4, None):
        worker = taught(colocated, tmp_path / "parts", **settings)
        worker.worker.backend.keep_teacher(teacher)
        asyncio.run(run_in_process(worker, stop_after=stop_after))
    assert adapter_digest(tmp_path / "parts") == adapter_digest(tmp_path / "whole")
