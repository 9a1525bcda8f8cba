"""What commands read of a job is what they say: `--set` of anything else is refused, though it would matter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from lorarl_api import load as contract
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_api.v1alpha1.common import Model
from lorarl_trainer.cli import main
from lorarl_trainer.cli.purge import READS as OF_PURGE
from lorarl_trainer.trained_adapters import chat, source
from lorarl_trainer.trained_adapters.chat import READS as OF_CHAT
from lorarl_trainer.trained_adapters.source import READS as OF_MERGE
from lorarl_trainer.trained_adapters.source import find_adapter
from unit.contract.manifests import SMALLEST, manifest
from unit.trainer.trained_adapters.test_source import made_adapter, made_base


class Recorder:
    """Notes which fields of a job are read, by their paths."""

    def __init__(self) -> None:
        self.read: set[str] = set()
        self._paths: dict[int, tuple[str, Any]] = {}

    def follow(self, part: Any, path: str) -> None:
        """Note what is read of a part of a job from now on."""
        if isinstance(part, BaseModel):
            self._paths[id(part)] = path, part
            for name, field in type(part).model_fields.items():
                self.follow(part.__dict__[name], f"{path}.{field.alias or name}")
        for one in part if isinstance(part, list) else ():
            self.follow(one, path)

    def follow_loads(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        """Note what is read of each job that a module loads from now on."""
        load = module.load_job

        def followed(*arguments: Any) -> Any:
            job = load(*arguments)
            self.follow(job.spec, "spec")
            return job

        monkeypatch.setattr(module, "load_job", followed)

    def note(self, part: Any, name: str) -> None:
        """Note a field that was read, unless it is a group, of which only the parts count."""
        path, _ = self._paths.get(id(part), ("", None))
        field = type(part).model_fields.get(name) if path else None
        if field is not None and not isinstance(part.__dict__[name], BaseModel | list):
            self.read.add(f"{path}.{field.alias or name}")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    usual: Callable[[Any, str], Any] = Model.__getattribute__

    def read(part: Any, name: str) -> Any:
        recorder.note(part, name)
        return usual(part, name)

    monkeypatch.setattr(Model, "__getattribute__", read)
    return recorder


def unsaid(read: set[str], reads: tuple[str, ...]) -> set[str]:
    """What was read and is not in the list of what a command reads."""
    return {path for path in read if not any(f"{path}.".startswith(f"{one}.") for one in reads)}


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made_base(tmp_path / "base", 1.0)
    (tmp_path / "base/tokenizer.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1 + 1", "answer": "2"}))
    changes = {"spec.model.uri": "file:base", "spec.data.train.uri": "file:rows.jsonl"}
    (tmp_path / "job.yaml").write_text(json.dumps(manifest({**changes, "spec.checkpoint.uri": "file:checkpoints"})))
    return tmp_path / "job.yaml"


def test_finding_an_adapter_reads_what_it_says(
    job_file: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.follow_loads(monkeypatch, source)
    monkeypatch.setattr(source, "secrets_on_demand", lambda _: {})  # it looks at the names of all
    found = find_adapter(str(made_adapter(Path("adapter"), Path("base"))), job_file, ())
    assert found.chats
    assert {"spec.model.uri", "spec.data.chatTemplate"} <= recorder.read
    assert unsaid(recorder.read, OF_MERGE) == set()


def test_a_row_of_a_chat_reads_what_it_says(
    job_file: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "secrets_on_demand", lambda _: {})
    job = source.load_job(job_file)
    recorder.follow(job.spec, "spec")
    chat._row_of(job, 1)
    chat.template_arguments(job, type("Tokenizer", (), {"chat_template": "x"}))
    assert {"spec.data.train.uri", "spec.data.train.answerField"} <= recorder.read
    assert unsaid(recorder.read, OF_CHAT) == {"spec.algorithm.type"}


def test_a_field_that_is_read_and_not_said_is_found(recorder: Recorder) -> None:
    spec = LoRARLJobSpec.model_validate(SMALLEST["spec"], by_alias=True, by_name=False)
    recorder.follow(spec, "spec")
    assert spec.trainer.steps and spec.model.uri
    assert unsaid(recorder.read, OF_MERGE) == {"spec.trainer.steps"}


def test_purge_reads_what_it_says(job_file: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder.follow_loads(monkeypatch, contract)
    CliRunner().invoke(main, ["purge", str(job_file), "--yes"])
    assert "spec.checkpoint.uri" in recorder.read and unsaid(recorder.read, OF_PURGE) == set()
