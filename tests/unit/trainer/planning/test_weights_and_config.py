"""A config.json whose sizes are no numbers, or are those of other weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from lorarl_trainer.errors import InputError
from lorarl_trainer.planning.model_sizes import read_model_sizes, sizes_of
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
