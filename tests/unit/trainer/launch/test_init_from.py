"""`adapter.initFrom` takes plain LoRA, and refuses by its name every option that makes an adapter something else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from lorarl_api.v1alpha1 import AdapterSpec, LoRARLJobSpec
from lorarl_api.v1alpha1.adapter import BaseModelSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.adapter_modules import require_fitting_modules
from lorarl_trainer.launch.init_from import doubts, read_initial_adapter
from lorarl_trainer.launch.preparation import Stored
from lorarl_trainer.lora.initial import InitialAdapter
from lorarl_trainer.lora.peft_options import DEFAULTS, PEFT_VERSION, refused_options
from lorarl_trainer.models.model_sizes import sizes_of
from unit.trainer.planning.shapes import SHAPES

PLAIN = DEFAULTS | {"r": 32, "lora_alpha": 64, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}


def read(folder: Path, adapter: Mapping[str, Any] = {}, **changes: Any) -> InitialAdapter | None:
    """Start a job with these settings of its adapter from one whose config has these changes."""
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | changes))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return read_initial_adapter(spec_from(folder, **adapter), {}, "heads.tensors")


def spec_from(folder: Path, **adapter: Any) -> LoRARLJobSpec:
    return LoRARLJobSpec.model_validate(
        {
            "model": {"uri": "file:base"},
            "adapter": {"targetModules": ["q_proj"], "initFrom": f"file:{folder}"} | adapter,
            "algorithm": {"type": "sft"},
            "data": {"train": {"uri": "file:train.jsonl"}},
            "checkpoint": {"uri": "file:checkpoints"},
        }
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"init_lora_weights": False},
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "orthogonal"},
        {"init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"lora_dropout": 0.1, "inference_mode": True, "revision": "main", "peft_version": "0.9.0"},
        {"exclude_modules": ["lm_head"], "loftq_config": None, "rank_pattern": None, "use_bdlora": False},
        {"an_option_of_another_version": None},
    ],
    ids=str,
)
def test_plain_lora_is_taken(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read(tmp_path, **changes) == InitialAdapter(b"weights", rank=32, scale=2.0)


@pytest.mark.parametrize(
    ("trained", "now", "warned"),
    [("fp8", "none", True), ("nf4", "fp8", True), ("none", "nf4", True), ("nf4", "nf4", False)],
)
def test_an_adapter_of_a_base_that_was_quantized_otherwise_is_a_warning(
    tmp_path: Path, trained: str, now: str, warned: bool
) -> None:
    said = {} if trained == "none" else {"baseModelQuantization": trained}
    (tmp_path / "lorarl_metadata.json").write_text(json.dumps({"baseModelFingerprint": "heads.tensors", **said}))
    spec = spec_from(tmp_path)
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"quantization": now})})
    found = doubts(read(tmp_path), spec, None)
    told = (
        f"was trained with model.quantization {trained}, and the job has {now}: here it is on a base of other weights"
    )
    assert [one for one in found if told in one] == found
    assert bool(found) is warned
    taught = Stored("heads.tensors", None, read(tmp_path)).doubts(spec, None)
    assert taught == [one.replace("spec.adapter.initFrom", "spec.algorithm.distillation.adapter") for one in found]


@pytest.mark.parametrize(
    ("base", "warned"),
    [("org/another", True), ("org/base", False), ("/models/Base/", False), (None, False), (1, False)],
)
def test_an_adapter_that_names_another_base_is_a_warning(tmp_path: Path, base: Any, warned: bool) -> None:
    """Its name may only be another path of the same model, so it is no error."""
    initial = read(tmp_path, base_model_name_or_path=base)
    found = doubts(initial, spec_from(tmp_path), None)
    assert bool(found) is warned
    assert all(
        "was made for org/another, and the job trains on file:base. Only names and shapes" in one for one in found
    )


@pytest.mark.parametrize(
    ("trained_on", "base", "hint"),
    [
        ("org/base", "org/base", None),
        ("unsloth/Base", "org/base", None),
        ("unsloth/Base-bnb-4bit", "org/base", None),
        ("unsloth/base-unsloth-bnb-4bit", "org/base", None),
        ("someone/base-AWQ", "org/base", None),
        ("unsloth/llama-3-8b-bnb-4bit", "meta-llama/Meta-Llama-3-8B", None),
        ("unsloth/other-bnb-4bit", "org/base", "unquantized model that unsloth/other-bnb-4bit was made of"),
        ("org/other", "org/base", "Set spec.model.uri: hf://org/other."),
        ("org/base-chat", "org/base", "Set spec.model.uri: hf://org/base-chat."),
    ],
)
def test_an_adapter_of_a_copy_of_the_base_is_taken(
    tmp_path: Path, trained_on: str, base: str, hint: str | None
) -> None:
    """Training on a quantized copy is what Unsloth does; the copy itself is a base that no job can have."""
    spec = spec_from(tmp_path).model_copy(update={"model": BaseModelSpec(uri=f"hf://{base}")})
    read(tmp_path, base_model_name_or_path=trained_on)
    if hint is None:
        assert read_initial_adapter(spec, {}, "heads.tensors") is not None
    else:
        with pytest.raises(InputError) as refused:
            read_initial_adapter(spec, {}, "heads.tensors")
        assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("files", "base", "warned"),
    [
        ({}, "{{ base }}", False),
        ({"chat_template.jinja": "{{ base }}\n"}, "{{ base }}", False),
        ({"chat_template.jinja": "{{ own }}"}, "{{ base }}", True),
        ({"chat_template.jinja": "{{ own }}"}, None, True),
        ({"tokenizer_config.json": json.dumps({"chat_template": "{{ own }}"})}, "{{ base }}", True),
        (
            {"tokenizer_config.json": json.dumps({"chat_template": [{"name": "default", "template": "{{ base }}"}]})},
            "{{ base }}",
            False,
        ),
        ({"tokenizer_config.json": "[]"}, "{{ base }}", False),
    ],
)
def test_a_chat_template_of_the_adapters_own_is_a_warning(
    tmp_path: Path, files: dict[str, str], base: str | None, warned: bool
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    found = doubts(read(tmp_path), spec_from(tmp_path), base)
    assert bool(found) is warned
    assert all("has its own chat template" in one for one in found)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("init_lora_weights", "pissa"),
        ("init_lora_weights", "pissa_niter_16"),
        ("init_lora_weights", "olora"),
        ("init_lora_weights", "loftq"),
        ("alora_invocation_tokens", [1, 2]),
        ("use_qalora", True),
        ("layer_replication", [[0, 4], [2, 5]]),
        ("fan_in_fan_out", True),
        ("target_parameters", ["feed_forward.experts.gate_up_proj"]),
        ("lora_bias", True),
        ("bias", "lora_only"),
        ("modules_to_save", ["lm_head"]),
        ("rank_pattern", {"q_proj": 4}),
        ("alpha_pattern", {"q_proj": 4}),
        ("layers_to_transform", [0]),
        ("layers_pattern", "layers"),
        ("trainable_token_indices", [5]),
        ("arrow_config", {"top_k": 2}),
        ("qalora_group_size", 8),
        ("an_option_of_another_version", "on"),
    ],
)
def test_what_is_more_than_plain_lora_is_refused_by_name(tmp_path: Path, option: str, value: Any) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, **{option: value})
    assert refused.value.got == f"an adapter with {option}: {json.dumps(value)}"
    assert (refused.value.field, refused.value.expected) == ("spec.adapter.initFrom", "plain LoRA")


@pytest.mark.parametrize(("option", "field"), [("use_rslora", "rslora"), ("use_dora", "dora")])
def test_another_scale_or_dora_is_refused_with_the_field(tmp_path: Path, option: str, field: str) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, **{option: True})
    assert refused.value.got == f"an adapter with {option}: true"
    assert refused.value.expected == f"false, as in spec.adapter.{field}"
    assert refused.value.hint == f"Set spec.adapter.{field}: true."


@pytest.mark.parametrize(
    ("changes", "adapter", "scale"),
    [
        ({"r": 8, "lora_alpha": 16}, {}, 2.0),
        ({"r": 8, "lora_alpha": 64}, {}, 8.0),
        ({"r": 16, "lora_alpha": 0.5}, {}, 1 / 32),
        ({"r": 16, "lora_alpha": 64, "use_rslora": True}, {"rslora": True}, 16.0),
    ],
)
def test_an_adapter_of_a_smaller_rank_is_taken_with_its_own_scale(
    tmp_path: Path, changes: dict[str, Any], adapter: dict[str, Any], scale: float
) -> None:
    assert read(tmp_path, adapter, **changes) == InitialAdapter(b"weights", rank=changes["r"], scale=scale)


@pytest.mark.parametrize(
    ("changes", "got", "expected", "hint"),
    [
        ({"r": 64}, "r 64", "at most 32, as in spec.adapter.rank", "Set spec.adapter.rank: 64."),
        ({"r": 0}, "r 0", "at most 32, as in spec.adapter.rank", "Set spec.adapter.initFrom to a folder that"),
        ({"r": None}, "r None", "at most 32, as in spec.adapter.rank", "Set spec.adapter.initFrom to a folder that"),
        ({"lora_alpha": 32}, "lora_alpha 32", "64, as in spec.adapter.alpha", "Set spec.adapter.alpha: 32."),
        ({"r": 8, "lora_alpha": 0}, "lora_alpha 0", "a number above 0", "Set spec.adapter.initFrom to a folder that"),
        ({"r": 8, "lora_alpha": "8"}, "lora_alpha 8", "a number above 0", "Set spec.adapter.initFrom to a folder that"),
    ],
)
def test_a_larger_rank_and_another_alpha_are_refused(
    tmp_path: Path, changes: dict[str, Any], got: str, expected: str, hint: str
) -> None:
    with pytest.raises(InputError) as refused:
        read(tmp_path, **changes)
    assert (refused.value.got, refused.value.expected) == (f"an adapter with {got}", expected)
    assert refused.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("files", "named", "message"),
    [
        ({"iter_0000004/lora_adapter/adapter_config.json": "{}"}, "iter_0000004", "/iter_0000004/lora_adapter."),
        ({"iter_0000004/lora_adapter/adapter_config.json": "{}"}, "", "/iter_0000004/lora_adapter."),
        ({"run_summary.json": '{"adapter_uri": "s3://team/a"}'}, "", ": s3://team/a, which is this run's newest"),
        ({"run_summary.json": '{"adapter_uri": null}'}, "", "Set spec.adapter.initFrom to a folder that PEFT's"),
        ({}, "", "Set spec.adapter.initFrom to a folder that PEFT's save_pretrained"),
    ],
)
def test_a_folder_above_an_adapter_says_where_it_is(
    tmp_path: Path, files: dict[str, str], named: str, message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as refused:
        read_initial_adapter(spec_from(tmp_path / named), {}, "heads.tensors")
    assert "which contains no adapter_config.json" in refused.value.got
    assert message in refused.value.hint


def test_a_pickle_in_place_of_safetensors_says_how_to_convert_it(tmp_path: Path) -> None:
    read(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(InputError, match=r"contains no adapter_model.safetensors.* Convert adapter_model.bin with"):
        read_initial_adapter(spec_from(tmp_path), {}, "heads.tensors")


SIZES = sizes_of(SHAPES["0.5B"])
ADAPTER = AdapterSpec(rank=2, alpha=4, target_modules=["q_proj"])


def weights(rank: int = 2, **changes: Any) -> bytes:
    """An adapter of the model, with one of its tensors changed."""
    tensors = {}
    for linear in SIZES.adapted(ADAPTER):
        for part, shape in (("A", (rank, linear.inputs)), ("B", (linear.outputs, rank))):
            tensors[f"base_model.model.{linear.name}.lora_{part}.weight"] = np.ones(shape, np.float32)
    first = next(iter(tensors))
    return save({**tensors, first: tensors[first].astype(changes.get("dtype", np.float32)) * changes.get("times", 1)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (weights(times=np.float32("nan")), "lora_A.weight has a value that is not finite, expected finite"),
        (weights(dtype=np.float16, times=np.float16("inf")), "lora_A.weight has a value that is not finite"),
        (weights(dtype=np.int64), "lora_A.weight in I64, expected finite floating-point numbers"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a whole safetensors file .* git lfs pull"),
        (b"PK\x03\x04" + bytes(100), "It is what torch.save writes. Convert adapter_model.bin with PEFT's"),
        (b"", "not a whole safetensors file .* Copy the adapter again"),
    ],
    ids=["nan", "inf", "int", "lfs", "pickle", "empty"],
)
def test_weights_that_cannot_be_trained_on_are_refused(content: bytes, message: str) -> None:
    require_fitting_modules(InitialAdapter(weights(), 2, 2.0), SIZES, ADAPTER)
    with pytest.raises(InputError, match=message):
        require_fitting_modules(InitialAdapter(content, 2, 2.0), SIZES, ADAPTER)


def test_tensors_have_the_rank_of_their_own_config() -> None:
    require_fitting_modules(InitialAdapter(weights(rank=1), 1, 2.0), SIZES, ADAPTER)
    with pytest.raises(InputError, match=r"lora_A.weight has the shape \[2, \d+\], expected \[1, \d+\]"):
        require_fitting_modules(InitialAdapter(weights(rank=2), 1, 2.0), SIZES, ADAPTER)


@pytest.mark.parametrize(
    ("layer", "never"),
    [
        ("model.vision_tower.layers.0.self_attn.q_proj", "layers such as model.vision_tower.layers.0.self_attn.q_proj"),
        ("model.embed_vision.embedding_projection", "embedding_projection"),
    ],
)
def test_layers_that_no_job_trains_are_named_even_beside_namesakes(layer: str, never: str) -> None:
    own = load(weights()) | {f"base_model.model.{layer}.lora_A.weight": np.ones((2, 8), np.float32)}
    with pytest.raises(InputError, match=f"No job trains {never}. Apply the adapter with lorarl merge"):
        require_fitting_modules(InitialAdapter(save(own), 2, 2.0), SIZES, ADAPTER)


def test_an_adapter_of_a_changed_base_can_be_converted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="path_initial_model_for_weight_conversion"):
        read(tmp_path, init_lora_weights="pissa")


def test_a_falsy_number_is_no_option_that_is_off() -> None:
    assert refused_options({"qalora_group_size": 0, "use_dora": 0, "init_lora_weights": 1}) == {
        "qalora_group_size": 0,
        "init_lora_weights": 1,
    }


PEFTS_OWN = """
import dataclasses, json, peft
missing = dataclasses.MISSING
fields = [field for field in dataclasses.fields(peft.LoraConfig) if field.name != "runtime_config"]
own = {field.name: field.default_factory() if field.default is missing else field.default for field in fields}
print(json.dumps([peft.__version__, own]))
"""


@pytest.mark.slow
def test_the_recorded_defaults_are_pefts_own() -> None:
    """In its own process: in the driver's, Transformers is without torch, and PEFT cannot be imported."""
    ran = subprocess.run([sys.executable, "-c", PEFTS_OWN], capture_output=True, text=True, check=True)
    version, own = json.loads(ran.stdout)
    assert version == PEFT_VERSION
    assert own | {"peft_type": "LORA", "peft_version": PEFT_VERSION} == DEFAULTS
