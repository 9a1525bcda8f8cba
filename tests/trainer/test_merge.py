"""`lorarl merge`: the model that base and adapter are, whole or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
)

from support.tiny_tokenizers import CHATML
from trainer.test_adapters import base_that_generates, lorarl
from trainer.test_adapters import folder as folder


def test_a_merged_model_computes_what_base_and_adapter_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = lorarl("merge", "adapter", "--out", "merged")
    assert done.exit_code == 0, done.output
    together = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("base"), "adapter")
    merged, tokenizer = AutoModelForCausalLM.from_pretrained("merged"), AutoTokenizer.from_pretrained("merged")
    ids = tokenizer("what is merged?", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        assert torch.allclose(merged(ids).logits, together(input_ids=ids).logits, atol=1e-4)
        with together.disable_adapter():
            assert not torch.allclose(merged(ids).logits, together(input_ids=ids).logits, atol=1e-2)
    assert tokenizer.chat_template == CHATML
    assert len({file.stat().st_mode for file in Path("merged").iterdir()}) == 1, "weights too are for all to read"
    assert not list(Path().glob(".merged*"))
    assert (
        "--out: got merged, which exists, expected a new folder" in lorarl("merge", "adapter", "--out", "merged").output
    )


@pytest.mark.parametrize(
    ("settings", "do_sample"),
    [
        ({"repetition_penalty": 1.1, "do_sample": True, "temperature": 0.7, "top_k": 20}, True),  # Qwen2.5's
        ({"temperature": 0.9, "top_p": 0.6}, True),  # Vicuna's, which Transformers refuses to save
        ({"eos_token_id": [3, 2]}, None),
        ({"do_sample": False, "temperature": 0.9}, False),  # refused too, but greedy by its own word
    ],
    ids=["qwen", "vicuna", "tokens", "greedy"],
)
def test_a_merged_model_generates_with_the_settings_of_its_base(
    folder: Path, tmp_path: Path, settings: dict[str, object], do_sample: bool | None
) -> None:
    base = base_that_generates(folder, tmp_path, **settings)
    done = lorarl("merge", folder / "adapter", "--base", base, "--out", tmp_path / "merged")
    assert done.exit_code == 0, done.output
    found = GenerationConfig.from_pretrained(tmp_path / "merged")
    expected = GenerationConfig.from_pretrained(base)
    expected.do_sample = do_sample
    assert found.to_dict() == expected.to_dict() | {"transformers_version": found.transformers_version}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "merged"]


def test_a_merged_model_fills_an_empty_folder_also_the_current_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays the same folder: a shell is in it, or a volume is mounted there."""
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    done = lorarl("merge", folder / "adapter", "--base", folder / "base", "--out", ".")
    assert done.exit_code == 0, done.output
    AutoModelForCausalLM.from_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tmp_path)
    assert tmp_path.stat().st_ino == before
    assert not list(tmp_path.glob(".*"))
    assert not list(tmp_path.parent.glob(".*partial"))


@pytest.mark.parametrize("exists", [False, True])
def test_a_merge_that_fails_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    words = ("merge", folder / "adapter", "--base", folder / "base", "--out", tmp_path / "merged")
    if exists:
        (tmp_path / "merged").mkdir()
    before = list(tmp_path.rglob("*"))
    for error, why in (
        (OSError(28, "No space left on device"), "No space left on device"),
        (SafetensorError("I/O error"), "SafetensorError: I/O error"),
        (ValueError("other"), None),
    ):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(PreTrainedTokenizerBase, "save_pretrained", fail)
        done = lorarl(*words)
        assert done.exit_code == 1
        assert list(tmp_path.rglob("*")) == before
        if why:
            assert f"merged, which cannot be written ({why}), expected a folder." in done.output
        else:
            assert done.exception is error


@pytest.mark.parametrize(
    ("option", "value", "biases"),
    [("alora_invocation_tokens", [1, 2], False), ("lora_bias", True, True)],
    ids=["activated by tokens", "with biases"],
)
def test_an_adapter_that_is_no_change_of_weights_is_not_merged(
    folder: Path, tmp_path: Path, option: str, value: object, biases: bool
) -> None:
    shutil.copytree(folder / "adapter", tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {option: value}))
    if biases:
        weights = tmp_path / "adapter" / "adapter_model.safetensors"
        tensors = load_file(weights)
        ends = {name: tensor for name, tensor in tensors.items() if name.endswith("lora_B.weight")}
        more = {name.removesuffix("weight") + "bias": torch.ones(len(tensor)) for name, tensor in ends.items()}
        save_file(tensors | more, weights)
    done = lorarl("merge", tmp_path / "adapter", "--base", folder / "base", "--out", tmp_path / "merged")
    assert done.exit_code == 1, done.output
    named = f"an adapter with {option}: {json.dumps(value)} that PEFT cannot merge ("
    assert named in done.output and "Serve base and adapter without merging." in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
