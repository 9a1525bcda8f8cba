"""Adapters as other programs make them with PEFT's options: base, adapter and merged model are what their files say."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from safetensors.torch import save as save_tensors
from transformers.models.gemma3 import Gemma3ImageProcessor

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.launch.adapter_modules import require_fitting_modules
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.models.fsdp_families import auto_class
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.trained_adapters.merge import merge
from lorarl_trainer.trained_adapters.merged_weights import recompute
from lorarl_trainer.trained_adapters.model import load_adapted
from lorarl_trainer.trained_adapters.source import find_adapter
from support.tiny_models import save
from support.tiny_tokenizers import CHATML, write_tokenizer

IDS = torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12]])
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
LANGUAGE = r".*language_model.*\.(q_proj|down_proj)"
type Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return what writes an adapter with PEFT, for a tiny model of an architecture: its folder, beside `base`."""
    bases: dict[str, Path] = {}

    def made(architecture: str = "qwen2-words", tokens: int | None = None, **options: Any) -> Path:
        if architecture not in bases:
            bases[architecture] = tmp_path_factory.mktemp(architecture)
            save(architecture, bases[architecture] / "base")
            write_tokenizer(bases[architecture] / "base", template=CHATML)
        folder = bases[architecture]
        torch.manual_seed(1)
        chosen = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
        base = loaded(folder / "base")
        if tokens is not None:
            base.resize_token_embeddings(tokens)
        model = get_peft_model(base, LoraConfig(**chosen | options))
        with torch.no_grad():
            for _, parameter in model.named_parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
        into = folder / str(len(list(folder.iterdir())))
        model.save_pretrained(into)
        return into

    return made


def loaded(folder: Path) -> Any:
    family = json.loads((folder / "config.json").read_text())["model_type"]
    return getattr(transformers, auto_class(family)).from_pretrained(folder, dtype=torch.float32).eval()


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=IDS).logits
        return found


def read(adapter: Path) -> Any:
    return load_adapted(find_adapter(str(adapter), None, (), str(adapter.parent / "base")), device="cpu")


@pytest.mark.parametrize(
    "options",
    [
        {"init_lora_weights": "pissa"},
        {"init_lora_weights": "olora"},
        {"bias": "all"},
        {"bias": "lora_only"},
        {"modules_to_save": ["lm_head"], "trainable_token_indices": [5, 7]},
    ],
    ids=str,
)
def test_the_base_beside_an_adapter_is_that_of_its_files(make: Make, options: dict[str, Any]) -> None:
    """PEFT changes the base for some adapters, and leaves it so when the adapter is off."""
    adapter = make(**options)
    base, model = logits(loaded(adapter.parent / "base")), read(adapter)
    expected = logits(PeftModel.from_pretrained(loaded(adapter.parent / "base"), adapter))
    for _ in range(2):
        assert torch.equal(logits(model.model), expected)
        with model.plain():
            assert torch.equal(logits(model.model), base)
    assert not torch.allclose(expected, base, atol=0.1)


@pytest.mark.parametrize(
    ("architecture", "options", "computed"),
    [
        ("gemma3-words", {"target_modules": LANGUAGE}, 4),  # its files have other names than the model
        ("qwen2-words", {"bias": "all"}, 4),
        ("qwen2-words", {"bias": "lora_only"}, 4),
        ("qwen2-words", {"target_modules": ["q_proj", "embed_tokens"]}, 3),
        ("qwen2-words", {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}, 2),
        ("qwen2-words", {"target_modules": ["q_proj"], "init_lora_weights": "pissa"}, 0),
    ],
    ids=str,
)
def test_it_is_merged_and_its_weights_are_computed_again(
    make: Make, tmp_path: Path, architecture: str, options: dict[str, Any], computed: int
) -> None:
    adapter = make(architecture, **options)
    base = adapter.parent / "base"
    done = merge(find_adapter(str(adapter), None, (), str(base)), tmp_path / "merged")
    assert done.computed == computed
    together = logits(PeftModel.from_pretrained(loaded(base), adapter))
    assert torch.allclose(logits(loaded(tmp_path / "merged")), together, atol=1e-4)
    if not computed:
        return
    own = load_file(adapter / WEIGHTS)
    name = next(name for name in sorted(own) if "lora_B" in name or "lora_embedding_B" in name)
    save_file(own | {name: own[name] * 1.01}, adapter / WEIGHTS)
    with pytest.raises(LorarlError, match="is not what base and adapter give"):
        recompute(base, adapter, tmp_path / "merged")


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"target_modules": ["q_proj", "embed_tokens"]}, "the embedding of a model that has one weight for both"),
        ({"target_modules": ["lm_head"]}, "the output layer of"),
        ({"target_modules": ["embed_tokens", "lm_head"]}, "the embedding and the output layer of"),
        ({"target_modules": ["embed_tokens"], "ensure_weight_tying": True}, "the embedding and the output layer of"),
    ],
    ids=str,
)
def test_an_adapter_on_a_shared_weight_is_not_merged(
    make: Make, tmp_path: Path, options: dict[str, Any], ends: str
) -> None:
    adapter = make("qwen3-tied-words", **options)
    source = find_adapter(str(adapter), None, (), str(adapter.parent / "base"))
    with pytest.raises(InputError, match=f"an adapter on {ends}.*Serve base and adapter without merging"):
        merge(source, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_replicated_layers_are_refused_and_the_hint_works(make: Make, tmp_path: Path) -> None:
    """PEFT gives the base these layers too, and they stay without the adapter: it would be compared with another.

    It leaves `layer_types` of config.json as it was, so that Qwen2 ends in an IndexError.
    """
    adapter = make("llama-words", layer_replication=[[0, 2], [1, 2]])
    with pytest.raises(InputError, match=r"layer_replication: \[\[0, 2\], \[1, 2\]\].*with --base, and set"):
        read(adapter)
    model = PeftModel.from_pretrained(loaded(adapter.parent / "base"), adapter)
    expected, base = logits(model), shutil.copytree(adapter.parent / "base", tmp_path / "base")
    whole = model.unload()
    layers = whole.model.layers  # copies of one share its weights, which no file can say
    whole.model.layers = torch.nn.ModuleList(copy.deepcopy(layer) for layer in layers)
    whole.save_pretrained(base)
    path = adapter / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layer_replication": None}))
    found = load_adapted(find_adapter(str(adapter), None, (), str(base)))
    assert torch.allclose(logits(found.model), expected, atol=1e-5)


@pytest.mark.parametrize("architecture", ["qwen2-words", "qwen3-tied-words"])
@pytest.mark.parametrize("tokens", [120, 131])
@pytest.mark.parametrize("saved", [None, ["embed_tokens", "lm_head"]], ids=["by itself", "trained"])
def test_a_vocabulary_that_was_changed_for_an_adapter_comes_with_it(
    make: Make, tmp_path: Path, architecture: str, tokens: int, saved: list[str] | None
) -> None:
    """As programs do that add the tokens of a chat template, or cut padding off."""
    adapter = make(architecture, tokens, modules_to_save=saved)
    base = adapter.parent / "base"
    resized = loaded(base)
    resized.resize_token_embeddings(tokens)
    expected = logits(PeftModel.from_pretrained(resized, adapter))
    model, plain = read(adapter), logits(loaded(base))
    assert torch.equal(logits(model.model), expected) and expected.shape[-1] == tokens
    with model.plain():
        known = min(tokens, plain.shape[-1])
        assert torch.allclose(logits(model.model)[..., :known], plain[..., :known], atol=1e-5)
    merge(find_adapter(str(adapter), None, (), str(base)), tmp_path / "merged")
    assert torch.allclose(logits(loaded(tmp_path / "merged")), expected, atol=1e-4)


def test_names_of_before_transformers_4_52_are_read_as_today_s(make: Make, tmp_path: Path) -> None:
    """Adapters of Gemma 3 from then are on the hub, and PEFT takes them."""
    adapter = make("gemma3-words", target_modules=LANGUAGE, modules_to_save=["lm_head"])
    base, expected = adapter.parent / "base", logits(read(adapter).model)
    assert torch.equal(logits(PeftModel.from_pretrained(loaded(base), adapter)), expected)
    parts = {
        "model.model.language_model.": "model.language_model.model.",
        "model.lm_head": "model.language_model.lm_head",
    }
    own = load_file(adapter / WEIGHTS)
    for now, earlier in parts.items():
        own = {name.replace(now, earlier): tensor for name, tensor in own.items()}
    save_file(own, adapter / WEIGHTS)
    assert torch.equal(logits(read(adapter).model), expected)
    assert merge(find_adapter(str(adapter), None, (), str(base)), tmp_path / "merged").computed == 4

    matrices = {name: tensor for name, tensor in own.items() if ".lora_" in name}
    spec = AdapterSpec.model_validate({"rank": 4, "alpha": 16, "targetModules": ["q_proj", "down_proj"]})
    sizes = sizes_of(json.loads((base / "config.json").read_text()))
    require_fitting_modules(InitialAdapter(save_tensors(matrices), 4, 4.0), sizes, spec)


def test_a_merged_model_has_what_reads_images_for_it(make: Make, tmp_path: Path) -> None:
    """vLLM does not start without, also where no image ever comes."""
    made = make("gemma3-words", target_modules=LANGUAGE)
    base = shutil.copytree(made.parent / "base", tmp_path / "base")
    Gemma3ImageProcessor(size={"height": 32, "width": 32}).save_pretrained(base)
    (base / "processor_config.json").write_text('{"image_seq_length": 4}')
    merge(find_adapter(str(made), None, (), str(base)), tmp_path / "merged")
    for name in ("preprocessor_config.json", "processor_config.json"):
        assert (tmp_path / "merged" / name).read_bytes() == (base / name).read_bytes()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"init_lora_weights": "pissa_niter_4"}, 'init_lora_weights: "pissa_niter_4".*path_initial_model'),
        ({"init_lora_weights": "loftq"}, 'init_lora_weights: "loftq"'),
        ({"use_of_tomorrow": True}, "use_of_tomorrow: true, expected options of PEFT .*Remove it from"),
    ],
)
def test_what_peft_would_draw_again_or_leave_out_is_refused(make: Make, config: dict[str, Any], message: str) -> None:
    adapter = make()
    path = adapter / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    with pytest.raises(InputError, match=message):
        read(adapter)


def test_options_of_other_versions_that_are_off_change_nothing(make: Make) -> None:
    adapter = make()
    before = logits(read(adapter).model)
    path = adapter / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"of_tomorrow": False, "init_lora_weights": None}))
    assert torch.equal(logits(read(adapter).model), before)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_codes_are_no_weights(make: Make, dtype: torch.dtype) -> None:
    adapter = make()
    tensors = load_file(adapter / WEIGHTS)
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, adapter / WEIGHTS)
    with pytest.raises(InputError, match=rf"lora_A.weight in {str(dtype)[6:]}, expected weights in bf16, fp16 or fp32"):
        read(adapter)


@pytest.mark.parametrize("named", [None, ""])
def test_an_adapter_that_names_no_base_needs_base(make: Make, tmp_path: Path, named: str | None) -> None:
    """PEFT writes none for a model that was not loaded from files."""
    made = make()
    adapter = shutil.copytree(made, tmp_path / "adapter")
    path = adapter / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": named}))
    with pytest.raises(InputError, match=r"names no base model.*Name the base model's folder with --base"):
        find_adapter(str(adapter), None, ())
    assert find_adapter(str(adapter), None, (), str(made.parent / "base")).adapter == adapter
