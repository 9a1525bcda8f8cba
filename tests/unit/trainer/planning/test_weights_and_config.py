"""A config.json whose sizes are no numbers, or are those of other weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import read_model_sizes, sizes_of
from lorarl_trainer.planning.verdict import judge
from unit.trainer.planning.jobs import cpu_job
from unit.trainer.planning.shapes import SHAPES

TINY = SHAPES["0.5B"] | {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
}


@pytest.mark.parametrize(
    ("name", "value"), [("hidden_size", "576"), ("num_attention_heads", 0), ("vocab_size", 1.5), ("head_dim", True)]
)
def test_a_size_that_is_no_number_is_named(name: str, value: Any) -> None:
    with pytest.raises(
        InputError, match=rf"got a config\.json with {name}: {value!r}, expected a whole number above 0"
    ):
        sizes_of(TINY | {name: value})


@pytest.mark.parametrize(("layers", "there"), [(2, None), (3, 2), (1, 2)])
def test_layers_of_weights_and_configuration_are_compared(tmp_path: Path, layers: int, there: int | None) -> None:
    weights = {name: np.zeros(shape, np.float32) for name, shape in sizes_of(TINY).shapes.items()}
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"num_hidden_layers": layers}))
    if there is None:
        assert read_model_sizes(tmp_path).layers == layers
        return
    expected = "whose weights have " + (
        f"{there} layers, where config.json means 3" if layers == 3 else "model.layers.1."
    )
    with pytest.raises(InputError, match=expected):
        read_model_sizes(tmp_path)


def test_a_weights_file_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    weights = {name: np.zeros(shape, np.float32) for name, shape in sizes_of(TINY).shapes.items()}
    half = len(weights) // 2
    index = {}
    for number, names in enumerate((list(weights)[:half], list(weights)[half:]), start=1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: weights[name] for name in names}, tmp_path / file)
        index |= dict.fromkeys(names, file)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert read_model_sizes(tmp_path).layers == 2
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"1 of 2 weights files are missing, first model-00001-of-00002\.s"):
        read_model_sizes(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InputError, match=r"index\.json, which cannot be read"):
        read_model_sizes(tmp_path)


def test_a_weight_that_is_missing_is_named_before_anything_starts(tmp_path: Path) -> None:
    weights = random_weights()
    del weights["model.layers.1.mlp.up_proj.weight"]
    write_model(tmp_path, weights)
    with pytest.raises(InputError, match=r"whose files lack model\.layers\.1\.mlp\.up_proj\.weight \(1 in all\)"):
        read_model_sizes(tmp_path)
    write_model(tmp_path, {name.removeprefix("model."): tensor for name, tensor in random_weights().items()})
    with pytest.raises(InputError, match=r"whose files lack model\.embed_tokens\.weight"):
        read_model_sizes(tmp_path)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_weight_must_be_in_the_file_that_the_index_names(tmp_path: Path, elsewhere: bool) -> None:
    weights, name = random_weights(), "model.norm.weight"
    one = {name: weights.pop(name)}
    write_model(tmp_path, weights)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    index = dict.fromkeys(weights, "a.safetensors") | {name: "a.safetensors"}
    if elsewhere:
        save_file({**one, "other": np.zeros(1)}, tmp_path / "b.safetensors")
        index["other"] = "b.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(
        InputError, match=r"which says that model\.norm\.weight is in a\.safetensors, expected an index"
    ):
        read_model_sizes(tmp_path)


def test_a_file_that_is_not_whole_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, random_weights())
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"model\.safetensors, which is not a whole safetensors file \(it has "):
        read_model_sizes(tmp_path)


@pytest.mark.parametrize("index", [False, True])
def test_two_files_must_not_have_different_weights_of_a_name(tmp_path: Path, index: bool) -> None:
    weights = random_weights()
    write_model(tmp_path, weights)
    other = tmp_path / "other.safetensors"
    save_file(weights, other)
    if index:  # vLLM takes the files of the index, and Transformers model.safetensors
        map_of_weights = {"weight_map": dict.fromkeys(weights, other.name)}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(map_of_weights))
    assert read_model_sizes(tmp_path).layers == 2
    save_file(weights | {"model.norm.weight": weights["model.norm.weight"] * 2}, other)
    with pytest.raises(
        InputError, match=r"files \S+ and \S+ have different weights model\.norm\.weight, expected each"
    ):
        read_model_sizes(tmp_path)


def test_files_that_the_index_does_not_name_do_not_matter(tmp_path: Path) -> None:
    weights = random_weights()
    write_model(tmp_path, weights)
    save_file({"lora_A.layers.0.weight": np.zeros(1)}, tmp_path / "adapter_model.safetensors")
    index = {"weight_map": dict.fromkeys(weights, "model.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model_sizes(tmp_path).layers == 2


def test_quantized_weights_are_refused(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    weights = random_weights()
    write_model(tmp_path, weights | {name: weights[name].astype(np.int8)})
    with pytest.raises(
        InputError, match=rf"whose {name} has the type I8: a quantized weight, expected weights in bf16"
    ):
        read_model_sizes(tmp_path)


def test_the_output_layer_of_a_tied_model_must_be_its_embedding(tmp_path: Path) -> None:
    weights = random_weights()
    embedding = weights["model.embed_tokens.weight"]
    for output in (embedding, embedding + 1):
        write_model(tmp_path, weights | {"lm_head.weight": output}, tie_word_embeddings=True)
        if output is embedding:
            assert "lm_head.weight" not in read_model_sizes(tmp_path).shapes
            continue
        with pytest.raises(
            InputError, match=r"whose lm_head\.weight differs from model\.embed_tokens\.weight, expected"
        ):
            read_model_sizes(tmp_path)


@pytest.mark.parametrize(("head", "taken"), [(16, False), (32, True), (48, True), (72, False)])
def test_a_cpu_generates_with_heads_that_vllm_has_attention_for(head: int, taken: bool) -> None:
    config = SHAPES["0.5B"] | {"head_dim": head}
    if taken:
        judge(cpu_job(), config)
        return
    with pytest.raises(InputError, match=rf"got a config\.json with heads of {head} .*, expected one of 32, 48,"):
        judge(cpu_job(), config)


@pytest.mark.parametrize(("first", "taken"), [(0, True), (1, False), (24, True)])
def test_vllm_takes_a_window_in_all_layers_or_none(first: int, taken: bool) -> None:
    config = SHAPES["0.5B"] | {"use_sliding_window": True, "sliding_window": 8192, "max_window_layers": first}
    assert config["num_hidden_layers"] == 24
    if taken:
        judge(cpu_job(), config)
        return
    with pytest.raises(InputError, match=r"from layer 1 of 24 \(max_window_layers\), expected a window in all layers"):
        judge(cpu_job(), config)


def random_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in sizes_of(TINY).shapes.items()}


def write_model(folder: Path, weights: dict[str, np.ndarray], **config: object) -> None:
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TINY | config))
