"""The exported adapter means the same in the trainer, in vLLM, and in Hugging Face with PEFT."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from support import tiny_models
from support.in_process import Colocated, prompts, random_adapter, samples_of, worst
from support.transformers_side import hf_logprobs, peft_model

pytestmark = pytest.mark.both_backends

TOLERANCE = 1e-5


@pytest.mark.both_backends(quick=True)
@pytest.mark.parametrize("adapter_type", ["canonical_lora", "lora"])
@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_trainer_vllm_and_peft_give_the_same_log_probabilities(
    colocated, tmp_path: Path, architecture: str, adapter_type: str
) -> None:
    require_same(colocated(architecture, adapter__type=adapter_type), tmp_path)


@pytest.mark.parametrize("architecture", tiny_models.OTHER_SHAPES)
def test_other_shapes_give_the_same_log_probabilities(colocated, tmp_path: Path, architecture: str) -> None:
    require_same(colocated(architecture), tmp_path)


def require_same(worker: Colocated, folder: Path) -> None:
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
    trainer = worker.trainer_logprobs(samples)
    vllm = [c.logprobs for c in rollouts]
    peft = hf_logprobs(peft_model(worker.model, worker.write_peft(folder / "adapter")), samples)
    base = hf_logprobs(AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32).eval(), samples)
    assert worst(trainer, peft) < TOLERANCE
    assert worst(vllm, peft) < TOLERANCE
    assert worst(base, peft) > 0.1, "an adapter that changes nothing would prove nothing"


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_failure_18_log_probabilities_agree_at_any_temperature(colocated, temperature: float) -> None:
    worker: Colocated = colocated(rollout__temperature=temperature)
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
    assert worst([c.logprobs for c in rollouts], worker.trainer_logprobs(samples, temperature)) < TOLERANCE


@pytest.mark.parametrize(
    "targets", [["q_proj", "v_proj"], ["up_proj"], ["*.layers.1.*"], ["linear_proj", "linear_fc2"]]
)
def test_failure_11_only_the_named_modules_are_trained_exported_and_served(
    colocated, tmp_path: Path, targets: list[str]
) -> None:
    worker: Colocated = colocated(adapter__targetModules=targets)
    worker.randomise()
    worker.sync()
    exported = {name.rsplit(".lora_", 1)[0] for name in worker.export()}
    assert exported == set(worker.built.modules)
    folder = worker.write_peft(tmp_path / "adapter")
    model = peft_model(worker.model, folder)
    with_adapter = {
        n.removeprefix("base_model.model.").rsplit(".lora_A", 1)[0]
        for n, _ in model.named_modules()
        if n.endswith("lora_A.default")
    }
    assert with_adapter == exported
    samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
    assert worst([c.logprobs for c in rollouts], hf_logprobs(model, samples)) < TOLERANCE
    assert worst(worker.trainer_logprobs(samples), hf_logprobs(model, samples)) < TOLERANCE


@pytest.mark.parametrize(
    ("excluded", "written"),
    [
        (["lm_head"], None),
        (["gate_proj", "lm_head"], ["gate_proj"]),
        (["*.layers.0.*.up_proj"], ["model.layers.0.mlp.up_proj"]),
    ],
)
def test_peft_leaves_out_what_was_excluded(
    colocated, tmp_path: Path, excluded: list[str], written: list[str] | None
) -> None:
    worker: Colocated = colocated(adapter__excludeModules=excluded)
    worker.randomise()
    folder = worker.write_peft(tmp_path / "adapter")
    assert json.loads((folder / "adapter_config.json").read_text())["exclude_modules"] == written
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = peft_model(worker.model, folder)
    assert [str(warning.message) for warning in told if "modules" in str(warning.message)] == []
    assert sum(name.endswith("lora_A.default") for name, _ in model.named_modules()) == len(worker.built.modules)


@pytest.mark.parametrize("adapter_type", ["canonical_lora", "lora"])
def test_failure_13_every_tensor_has_the_rank_of_the_manifest(colocated, adapter_type: str) -> None:
    worker: Colocated = colocated(adapter__type=adapter_type, adapter__rank=5)
    for name, tensor in worker.export().items():
        assert tensor.shape[0 if ".lora_A." in name else 1] == 5, name


@pytest.mark.parametrize("adapter_type", ["canonical_lora", "lora"])
def test_importing_is_the_exact_inverse_of_exporting(colocated, adapter_type: str) -> None:
    worker: Colocated = colocated("llama", adapter__type=adapter_type)
    adapter = random_adapter(worker)
    worker.load(adapter)
    exported = worker.export()
    assert exported.keys() == adapter.keys()
    assert all(torch.equal(exported[name], adapter[name]) for name in adapter)


def test_a_new_adapter_changes_nothing_and_is_the_same_for_the_same_seed(colocated) -> None:
    first, again, other = colocated(), colocated(), colocated(trainer__seed=1)
    samples = samples_of(prompts(), first.sync() and first.generate(prompts()))
    base = hf_logprobs(AutoModelForCausalLM.from_pretrained(first.model, dtype=torch.float32).eval(), samples)
    assert worst(first.trainer_logprobs(samples), base) < TOLERANCE
    a, b, c = first.export(), again.export(), other.export()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not any(torch.equal(a[name], c[name]) for name in a if ".lora_A." in name)


def test_an_adapter_made_by_peft_itself_is_a_start(colocated, tmp_path: Path) -> None:
    from lorarl_trainer.lora import peft_format

    worker: Colocated = colocated("qwen2")
    torch.manual_seed(3)
    config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    theirs = get_peft_model(AutoModelForCausalLM.from_pretrained(worker.model, dtype=torch.float32), config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    worker.load(
        peft_format.read_adapter(
            (tmp_path / "theirs" / "adapter_model.safetensors").read_bytes(), "spec.adapter.initFrom"
        )
    )
    worker.sync()
    samples = samples_of(prompts(), rollouts := worker.generate(prompts()))
    expected = hf_logprobs(theirs, samples)
    assert worst(worker.trainer_logprobs(samples), expected) < TOLERANCE
    assert worst([c.logprobs for c in rollouts], expected) < TOLERANCE
