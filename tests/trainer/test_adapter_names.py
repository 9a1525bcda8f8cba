"""What reads an adapter's file reads all of it: all readers take the same names, and refuse the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save, save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.cli import main
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.adapter_modules import require_fitting_modules
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.trained_adapters.model import load_adapted
from lorarl_trainer.trained_adapters.source import find_adapter
from support.tiny_tokenizers import CHATML, write_tokenizer

MODULES = ["q_proj", "v_proj", "down_proj"]
SPEC = AdapterSpec.model_validate({"rank": 4, "alpha": 64, "targetModules": MODULES})
PEFTS = "base_model.model."
WEIGHTS = "adapter_model.safetensors"
type Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": 128, "eos_token_id": 3, "bos_token_id": None, "pad_token_id": 0}
    Qwen3ForCausalLM(Qwen3Config(**shape, **tokens, num_key_value_heads=2, head_dim=32)).save_pretrained(
        folder / "base"
    )
    write_tokenizer(folder / "base", template=CHATML)
    options = LoraConfig(r=4, lora_alpha=64, target_modules=MODULES, init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(folder / "base"), options).save_pretrained(folder / "adapter")
    return folder


def saved(folder: Path, into: Path, change: Callable[[Tensors], Tensors], **config: object) -> Path:
    """Save the adapter with other tensors."""
    into.mkdir(exist_ok=True)
    own = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    (into / "adapter_config.json").write_text(json.dumps(own | config))
    save_file(change(load_file(folder / "adapter" / WEIGHTS)), into / WEIGHTS)
    return into


def renamed(change: Callable[[str], str]) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {change(name): tensor for name, tensor in tensors.items()}


def read_by_all(folder: Path, adapter: Path) -> torch.Tensor:
    """Read an adapter as a start of a training and as `lorarl evaluate`, chat and merge do. Return its logits."""
    sizes = sizes_of(json.loads((folder / "base" / "config.json").read_text()))
    require_fitting_modules(InitialAdapter((adapter / WEIGHTS).read_bytes(), 4, 16.0), sizes, SPEC)
    model = load_adapted(find_adapter(str(adapter), None, (), str(folder / "base")))
    with torch.inference_mode():
        logits: torch.Tensor = model.model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits
        return logits


@pytest.mark.parametrize(
    "change",
    [
        lambda name: name.replace(PEFTS, PEFTS * 2),
        lambda name: name.removeprefix(PEFTS),
        lambda name: name.replace(PEFTS, f"{PEFTS}_orig_mod."),
        lambda name: name.replace(".self_attn.", "._orig_mod.self_attn."),
        lambda name: name.replace(PEFTS, f"_orig_mod.{PEFTS}"),
        lambda name: f"module.{name}",
        lambda name: name.replace(".mlp.", "._checkpoint_wrapped_module.mlp."),
        lambda name: name.replace(PEFTS, f"_fsdp_wrapped_module.{PEFTS}_fsdp_wrapped_module."),
        lambda name: name.replace(".weight", ".default.weight"),
        lambda name: name.removeprefix(PEFTS).replace(".weight", ".my_adapter.weight"),
    ],
    ids=["doubled", "none", "compiled", "layers", "outer", "ddp", "recomputed", "fsdp", "default", "other"],
)
def test_what_a_wrapper_adds_to_names_is_left_out_by_all_readers(
    folder: Path, tmp_path: Path, change: Callable[[str], str]
) -> None:
    adapter = saved(folder, tmp_path / "a", renamed(change))
    assert torch.equal(read_by_all(folder, adapter), read_by_all(folder, folder / "adapter"))


def without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if part not in name}


@pytest.mark.parametrize(
    ("change", "there", "expected"),
    [
        (renamed(lambda name: name.replace(PEFTS, f"{PEFTS}language_model.")), f"{PEFTS}language_model.model.", PEFTS),
        (renamed(lambda name: name.replace("model.layers", "layers")), f"{PEFTS}layers.0.", f"{PEFTS}model.layers.0."),
        (renamed(lambda name: name.replace("self_attn", "attention")), "layers.0.attention.q_proj", "0.self_attn."),
        (renamed(lambda name: name.replace("lora_A", "lora_down")), "lora_down.weight", "lora_A.weight"),
        (without("layers.1."), f"without {PEFTS}model.layers.1.", "one tensor for each matrix"),
        (without("lora_B"), "lora_B.weight and 5 more", "one tensor for each matrix"),
        (without("v_proj"), "v_proj", "one tensor for each matrix"),
        (without("layers"), "an adapter without", "one tensor for each matrix"),
        (
            lambda tensors: tensors | {f"{PEFTS}model.layers.9.mlp.down_proj.lora_A.weight": torch.ones(4, 96)},
            "layers.9.mlp.down_proj.lora_A.weight",
            "one tensor for each matrix",
        ),
        (
            lambda tensors: tensors | {name.replace(PEFTS, ""): tensor + 1 for name, tensor in tensors.items()},
            " and model.layers.0.",
            "one tensor for each matrix of a layer",
        ),
    ],
    ids=["model", "layers", "attention", "matrix", "half", "pairs", "modules", "empty", "more", "twice"],
)
def test_what_does_not_fit_is_refused_by_all_readers_with_names(
    folder: Path, tmp_path: Path, change: Callable[[Tensors], Tensors], there: str, expected: str
) -> None:
    adapter = saved(folder, tmp_path / "a", change)
    sizes = sizes_of(json.loads((folder / "base" / "config.json").read_text()))
    with pytest.raises(InputError) as at_start:
        require_fitting_modules(InitialAdapter((adapter / WEIGHTS).read_bytes(), 4, 16.0), sizes, SPEC)
    with pytest.raises(InputError) as later:
        load_adapted(find_adapter(str(adapter), None, (), str(folder / "base")))
    for error in (at_start.value, later.value):
        assert there in error.got, error
        assert expected in error.expected, error
    done = CliRunner().invoke(
        main, ["merge", str(adapter), "--base", str(folder / "base"), "--out", str(tmp_path / "m")]
    )
    assert done.exit_code == 1 and there in done.output and not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("tensors", "settings"),
    [
        (without("v_proj"), {}),
        (without("layers.1."), {}),
        (without("layers.1.mlp"), {}),
        (without("q_proj"), {"type": "lora"}),
        (without("v_proj"), {"excludeModules": ["layers.0.mlp.down_proj"]}),
    ],
    ids=["modules", "half", "a part", "fused", "excluded"],
)
def test_the_hint_names_settings_with_which_the_adapter_fits(
    folder: Path, tmp_path: Path, tensors: Callable[[Tensors], Tensors], settings: dict[str, object]
) -> None:
    adapter = saved(folder, tmp_path / "a", tensors)
    initial = InitialAdapter((adapter / WEIGHTS).read_bytes(), 4, 16.0)
    sizes = sizes_of(json.loads((folder / "base" / "config.json").read_text()))
    fields = {"rank": 4, "alpha": 64, "targetModules": ["linear_qkv", "down_proj"], **settings}
    with pytest.raises(InputError) as refused:
        require_fitting_modules(initial, sizes, AdapterSpec.model_validate(fields))
    hint = refused.value.hint
    modules = hint.partition("targetModules: [")[2].partition("]")[0].split(", ")
    fields |= {"targetModules": modules} | ({"type": "canonical_lora"} if "type: canonical_lora" in hint else {})
    if "remove spec.adapter.excludeModules" in hint:
        fields.pop("excludeModules")
    require_fitting_modules(initial, sizes, AdapterSpec.model_validate(fields))


@pytest.mark.parametrize("field", ["spec.adapter.initFrom", "spec.algorithm.distillation.adapter"])
def test_separate_parts_are_refused_for_a_fused_adapter_at_once(folder: Path, field: str) -> None:
    sizes = sizes_of(json.loads((folder / "base" / "config.json").read_text()))
    tensors = load_file(folder / "adapter" / WEIGHTS)
    tensors |= {
        name.replace("v_proj", "k_proj"): tensor.clone() for name, tensor in tensors.items() if "v_proj" in name
    }
    fields = {"rank": 4, "alpha": 64, "targetModules": ["linear_qkv", "down_proj"]}
    initial = InitialAdapter(save(tensors), 4, 16.0)
    with pytest.raises(InputError, match="one A for the parts of a fused layer") as refused:
        require_fitting_modules(initial, sizes, AdapterSpec.model_validate({**fields, "type": "lora"}), field)
    assert (refused.value.field, refused.value.hint) == (field, "Set spec.adapter.type: canonical_lora.")
    require_fitting_modules(initial, sizes, AdapterSpec.model_validate(fields), field)
