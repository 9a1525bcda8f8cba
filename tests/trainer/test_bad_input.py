"""Input that a worker refuses at its start. tests/run/test_bad_input_of_workers.py tests how the command reports it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.workers.worker import Worker
from support.in_process import ALONE, STOP, Colocated, tiny_job


def test_an_architecture_that_is_not_known(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    model = tmp_path / "unknown"
    shutil.copytree(model_folder("qwen3-tied"), model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["HyenaForCausalLM"]}))
    worker = Worker(tiny_job(model, tmp_path).spec, ALONE)
    with pytest.raises(InputError, match=r"spec\.model\.uri: got .*HyenaForCausalLM"):
        worker.start(model, STOP, None)


@pytest.mark.parametrize("lost", ["model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight"])
def test_files_without_one_of_the_models_weights(
    model_folder: Callable[[str], Path], tmp_path: Path, lost: str
) -> None:
    """Megatron-Bridge only logs it, and the model would compute with what happens to be in memory."""
    model = tmp_path / "partial"
    shutil.copytree(model_folder("qwen2-tied"), model)
    weights = load_file(model / "model.safetensors")
    save_file({name: tensor for name, tensor in weights.items() if name != lost}, model / "model.safetensors")
    worker = Worker(tiny_job(model, tmp_path).spec, ALONE)
    with pytest.raises(InputError, match=rf"spec\.model\.uri: got {model}, whose files lack {lost} \(1 in all\)"):
        worker.start(model, STOP, None)


@pytest.mark.both_backends(quick=True)
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_weight_that_is_no_number(
    model_folder: Callable[[str], Path], tmp_path: Path, value: float, backend: str
) -> None:
    """It failed while the first tokens were sampled, as an index that is out of bounds."""
    model = tmp_path / "broken"
    shutil.copytree(model_folder("qwen2-tied"), model)
    weights = load_file(model / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] = value
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    worker = Worker(tiny_job(model, tmp_path, trainer__backend=backend).spec, ALONE)
    broken = r"model\.layers\.1\.mlp\.down_proj\.weight has values that are not finite \(1 such weights\)"
    with pytest.raises(InputError, match=rf"spec\.model\.uri: got {model}, whose {broken}"):
        worker.start(model, STOP, None)


def test_an_adapter_of_other_modules_to_start_from(colocated: Callable[..., Colocated], tmp_path: Path) -> None:
    first = colocated()
    adapter = (first.write_peft(tmp_path / "adapter") / "adapter_model.safetensors").read_bytes()
    worker = Worker(tiny_job(first.model, tmp_path, adapter__targetModules="[q_proj, v_proj]").spec, ALONE)
    with pytest.raises(InputError, match=r"spec\.adapter\.initFrom: got "):
        worker.start(first.model, STOP, InitialAdapter(adapter, first.worker.backend.adapter.config.rank, 1.0))


def test_samples_longer_than_the_model_takes(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    model = model_folder("qwen3-tied")
    worker = Worker(tiny_job(model, tmp_path, rollout__maxResponseTokens=5000).spec, ALONE)
    told = r"spec\.rollout\.maxResponseTokens: got 5000, with rollout\.maxPromptTokens 16, for a model of "
    with pytest.raises(InputError, match=told):
        worker.start(model, STOP, None)
