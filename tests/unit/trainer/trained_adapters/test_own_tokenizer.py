"""The tokenizer and template of an adapter: its own where it has them, else the base model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.errors import InputError
from lorarl_trainer.trained_adapters.own_tokenizer import load_own_tokenizer
from lorarl_trainer.trained_adapters.source import Source
from support.tiny_tokenizers import CHATML, SPECIAL, write_tokenizer
from unit.contract.manifests import manifest

OWN = "{% for m in messages %}<s>{{ m.content }}{% endfor %}"
SAID = "warning: the adapter's own {} is used; the base model has another one\n"


def source(folder: Path, base_template: str | None = CHATML, **changes: Any) -> Source:
    write_tokenizer(folder / "base", template=base_template)
    (folder / "base" / "config.json").write_text('{"model_type": "llama"}')
    (folder / "adapter").mkdir(exist_ok=True)
    job = load_job(json.dumps(manifest(changes))) if changes else None
    return Source("mine", folder / "adapter", str(folder / "base"), None, job, folder)


def test_without_its_own_an_adapter_has_the_base_model_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert load_own_tokenizer(source(tmp_path)).chat_template == CHATML
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": OWN},
        {"tokenizer_config.json": json.dumps({"chat_template": OWN})},
        {"tokenizer_config.json": json.dumps({"chat_template": [{"name": "default", "template": OWN}]})},
    ],
    ids=["a file of its own", "in the configuration", "by name"],
)
def test_its_own_template_is_used_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> None:
    of = source(tmp_path)
    for name, content in files.items():
        (of.adapter / name).write_text(content)
    assert load_own_tokenizer(of).chat_template == OWN
    assert capsys.readouterr().err == SAID.format("chat template")


def test_the_same_template_with_another_end_is_not_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = source(tmp_path)
    (of.adapter / "chat_template.jinja").write_text(CHATML + "\n")
    load_own_tokenizer(of)
    assert capsys.readouterr().err == ""


def test_its_own_tokens_are_used_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = source(tmp_path)
    write_tokenizer(of.adapter, template=None, special=[*SPECIAL, "<tool>"])
    own = load_own_tokenizer(of)
    assert "<tool>" in own.get_vocab() and own.chat_template == CHATML, "a tokenizer without a template has the base's"
    assert capsys.readouterr().err == SAID.format("tokenizer")


def test_the_template_of_the_job_is_used_unless_the_adapter_has_one(tmp_path: Path) -> None:
    (tmp_path / "job.jinja").write_text("{{ messages }}")
    of = source(tmp_path, **{"spec.data.chatTemplateFile": f"file:{tmp_path}/job.jinja"})
    assert load_own_tokenizer(of).chat_template == "{{ messages }}"
    (of.adapter / "chat_template.jinja").write_text(OWN)
    (tmp_path / "job.jinja").unlink()
    assert load_own_tokenizer(of).chat_template == OWN


def test_a_base_model_without_a_tokenizer_is_no_obstacle(tmp_path: Path) -> None:
    of = source(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "base" / name).unlink()
    write_tokenizer(of.adapter, template=OWN)
    assert load_own_tokenizer(of).chat_template == OWN


def test_a_tokenizer_that_cannot_be_loaded_is_an_error_of_the_adapter(tmp_path: Path) -> None:
    of = source(tmp_path)
    (of.adapter / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"ADAPTER: got mine, whose tokenizer cannot be loaded .* Remove them from"):
        load_own_tokenizer(of)
