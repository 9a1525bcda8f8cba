"""Paths and folders that are not what a manifest says: what to do about each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import BaseModelSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.storage.downloads import fetch_model, fetch_model_config
from lorarl_trainer.storage.fingerprint import fingerprint
from lorarl_trainer.storage.hints import missing_hint

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/data/$HOME/rows.jsonl", "Write the path itself: variables such as $HOME are not replaced"),
        ("/data/my%20rows.jsonl", "Write spaces as they are"),
        ("/data/rows.jsonl", "Check the path /data/rows.jsonl."),
        ("out/addition/base", "Check the path out/addition/base. For an example, the comment at the top of"),
    ],
)
def test_a_path_that_is_not_there(path: str, hint: str) -> None:
    assert missing_hint(Path(path)).startswith(hint)


OF_EXAMPLES = {
    file: file.read_text()
    for file in sorted((ROOT / "examples").rglob("*.yaml"))
    if re.search(r"^  +(uri: |train: .uri: .)file:out/", file.read_text(), re.M)
}


@pytest.mark.parametrize("file", OF_EXAMPLES, ids=lambda file: file.stem)
def test_the_comment_of_an_example_says_how_to_make_what_it_reads(file: Path) -> None:
    job = load_job(file).spec
    if any(uri.startswith("file:out/") for uri in (job.model.uri, job.data.train.uri)):
        comment = OF_EXAMPLES[file].partition("apiVersion")[0]
        assert re.search(r"^#.*(makes? .*(base model|model and the data)|docs/\w+\.md)", comment, re.M | re.I)


def config_hint(folder: Path) -> str:
    with pytest.raises(InputError) as refused:
        fetch_model_config(BaseModelSpec(uri=f"file://{folder}"), secret={}, open_folder=no_store)
    return refused.value.hint


def no_store(*_: object) -> None:
    raise AssertionError("a local model needs no store")


def test_a_folder_without_a_model_says_where_it_is(tmp_path: Path) -> None:
    assert config_hint(tmp_path) == "Set spec.model.uri to the folder that contains it."
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    assert config_hint(tmp_path) == f"Set spec.model.uri to file:{tmp_path}/base."


def test_an_adapter_in_place_of_a_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    assert config_hint(tmp_path).startswith(
        "This is an adapter: set spec.adapter.initFrom to it, and spec.model.uri to its base model (org/base)."
    )
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "to its base model. " in config_hint(tmp_path)


@pytest.mark.parametrize(
    ("there", "hint"),
    [
        ("model.Q4.gguf", "Use the model in Hugging Face format: a .gguf file is a quantized copy for llama.cpp."),
        ("pytorch_model.bin", "Convert pytorch_model.bin with save_pretrained(safe_serialization=True)."),
        ("README.md", "Copy or download its *.safetensors files too."),
    ],
)
def test_a_model_without_weights_says_what_it_has(tmp_path: Path, there: str, hint: str) -> None:
    for name in ("config.json", "tokenizer.json", there):
        (tmp_path / name).write_text("{}")
    with pytest.raises(InputError) as refused:
        fetch_model(BaseModelSpec(uri=f"file://{tmp_path}"), secret={}, open_folder=no_store)
    assert refused.value.hint == hint


def test_weights_that_are_a_pointer_of_git_lfs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(InputError, match=r"which is a pointer of git lfs, .*git lfs pull"):
        fingerprint(tmp_path)
