"""A quantized base: trainer, vLLM, and Transformers on the numbers that its codes stand for, compute the same."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from lorarl_api.v1alpha1 import Quantization
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.kernels.formats import FORMATS
from lorarl_trainer.kernels.quantized_linear import empty
from lorarl_trainer.storage import open_store
from lorarl_trainer.tinker.saved import SavedWeights
from lorarl_trainer.trained_adapters.source import find_adapter
from support.in_process import Colocated, prompts, samples_of, update_request, worst
from support.loop_runs import adapter_digest, run_in_process
from support.transformers_side import hf_logprobs, mean_logprob_gradients, peft_model, plain_model, quantized_model
from trainer.test_adapters import folder as folder
from trainer.test_adapters import lorarl
from trainer.test_parity import TOLERANCE
from trainer.test_resume import start, whole_run

NEVER_QUANTIZED = "embed|norm|lm_head"
every_format = pytest.mark.parametrize("quantization", FORMATS)


def job(quantization: Quantization) -> dict[str, str | None]:
    """The fields of a job on such a base."""
    return {"trainer__backend": None, "model__quantization": quantization}


@every_format
@pytest.mark.parametrize("architecture", ["qwen2-tied", "phi3"])
def test_trainer_vllm_and_peft_agree_on_one_copy(
    colocated, tmp_path: Path, architecture: str, quantization: Quantization
) -> None:
    """Biases, tied embeddings, rows that end within a block, and layers that vLLM fuses; phi3 has fused ones itself."""
    worker: Colocated = colocated(architecture, **job(quantization))
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
    base = quantized_model(worker.model, tmp_path / "rounded", quantization)
    model = peft_model(base, worker.write_peft(tmp_path / "adapter"), trainable=True)
    expected = hf_logprobs(model, samples)
    assert worst(worker.trainer_logprobs(samples), expected) < TOLERANCE
    assert worst([c.logprobs for c in rollouts], expected) < TOLERANCE
    assert worst(hf_logprobs(peft_model(worker.model, tmp_path / "adapter"), samples), expected) > 1e-3, (
        "codes that change nothing would prove nothing"
    )
    backend = worker.worker.backend
    backend._trainer.forward_backward(update_request(samples))
    found = backend.layout.gather([gradient.clone() for gradient in backend.optimizer.gradients])
    theirs = mean_logprob_gradients(model, samples)
    assert theirs.keys() == found.keys()
    for name, gradient in theirs.items():
        assert torch.allclose(found[name], gradient, atol=1e-5), name

    held = dict(backend.model.base_parameters())
    of_linears = {name.rpartition("."): p.dtype for name, p in held.items() if not re.search(NEVER_QUANTIZED, name)}
    assert {kind: dtype for (_, _, kind), dtype in of_linears.items() if kind != "bias"} == {
        name: tensor.dtype for name, tensor in empty(FORMATS[quantization], 1, 64)
    }
    of_vllm = worker.engine.vllm_worker.model_runner.model.parameters()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (*held.values(), *of_vllm)}
    assert sum(storages.values()) <= 1.03 * sum(p.nbytes for p in held.values())
    assert worker.rollouts.base.copied_bytes == 0


@every_format
def test_it_learns_and_an_interrupted_run_ends_in_the_same_bytes(
    colocated, tmp_path: Path, quantization: Quantization
) -> None:
    changes, other = job(quantization), "fp8" if quantization == "nf4" else None
    expected, rewards = whole_run(colocated, tmp_path / "whole", **changes)
    assert sum(rewards[3:]) / 3 > sum(rewards[:3]) / 3 + 0.03
    asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes), stop_after=2))
    asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **changes)))
    assert adapter_digest(tmp_path / "parts") == expected
    metadata = next(tmp_path.glob("parts/**/lorarl_metadata.json"))
    assert json.loads(metadata.read_text())["baseModelQuantization"] == quantization
    now = {"trainer__backend": "fsdp"} | ({"model__quantization": other} if other else {})
    said = rf'model\.quantization was "{quantization}", is {json.dumps(other)}'
    with pytest.raises(LorarlError, match=said):
        asyncio.run(run_in_process(start(colocated, tmp_path / "parts", **now)))


@every_format
def test_a_merged_model_has_the_numbers_that_the_adapter_was_trained_on(
    folder: Path, tmp_path: Path, quantization: Quantization
) -> None:
    adapter = shutil.copytree(folder / "adapter", tmp_path / "adapter")
    (adapter / "lorarl_metadata.json").write_text(json.dumps({"baseModelQuantization": quantization}))
    done = lorarl("merge", adapter, "--base", folder / "base", "--out", tmp_path / "merged")
    assert done.exit_code == 0, done.output
    assert re.search(r"check +[1-9]", done.output)
    together = PeftModel.from_pretrained(
        plain_model(quantized_model(folder / "base", tmp_path / "rounded", quantization)), adapter
    )
    ids = torch.arange(4, 12)[None]
    with torch.inference_mode():
        logits = plain_model(tmp_path / "merged")(ids).logits
        assert torch.allclose(logits, together(input_ids=ids).logits, atol=1e-4)
        off = PeftModel.from_pretrained(plain_model(folder / "base"), adapter)(input_ids=ids).logits - logits
    assert off.abs().max() > 1e-3
    assert "quantization" not in (tmp_path / "merged/config.json").read_text()


@every_format
def test_what_a_service_saves_says_how_its_base_was_quantized(
    colocated, tmp_path: Path, quantization: Quantization
) -> None:
    """Otherwise `lorarl merge` and `lorarl evaluate` would take another base for it."""
    worker: Colocated = colocated("qwen2-tied", **job(quantization))
    saved = SavedWeights(open_store(f"file://{tmp_path}"), worker.worker, worker.spec, "f1")
    saved.save("run:train:0", "sampler_weights", "end", worker.worker.backend.snapshot())
    (folder,) = tmp_path.glob("*/sampler_weights/end/lora_adapter")
    assert find_adapter(str(folder), None, (), str(worker.model)).quantization == quantization
