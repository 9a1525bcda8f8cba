"""`--set` of what a command does not read of its job is refused: nothing would come of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lorarl_api.load import ManifestError, load_job
from lorarl_api.schema import schema_at
from lorarl_trainer.cli import main
from lorarl_trainer.cli.purge import READS as OF_PURGE
from lorarl_trainer.tinker.start import READS as OF_TINKER
from lorarl_trainer.trained_adapters.chat import READS as OF_CHAT
from lorarl_trainer.trained_adapters.request import READS as OF_EVALUATE
from lorarl_trainer.trained_adapters.serving.subject import READS as OF_SERVE
from lorarl_trainer.trained_adapters.source import READS as OF_MERGE
from unit.contract.manifests import SMALLEST
from unit.trainer.trained_adapters.test_source import made_adapter, made_base

JOB = json.dumps(SMALLEST)


@pytest.mark.parametrize("reads", [OF_PURGE, OF_TINKER, OF_CHAT, OF_EVALUATE, OF_SERVE, OF_MERGE])
def test_what_a_command_reads_are_fields(reads: tuple[str, ...]) -> None:
    assert [path for path in reads if path != "metadata.uid" and schema_at(path.split(".")) is None] == []
    assert len(set(reads)) == len(reads)


COMMANDS = [
    *("merge ADAPTER --job JOB --out merged", "chat ADAPTER --job JOB", "serve ADAPTER --job JOB"),
    *("evaluate ADAPTER --job JOB", "purge JOB", "serve --tinker --model base"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_field_that_a_command_does_not_read_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made_adapter(Path("ADAPTER"), made_base(Path("base"), 1.0))
    Path("JOB").write_text(JOB)
    field = "spec.trainer.steps" if "tinker" in command or "purge" in command else "spec.model.quantization"
    value = "7" if field.endswith("steps") else '"nf4"'
    done = CliRunner().invoke(main, [*command.split(), "--set", f"{field}={value}"])
    assert done.exit_code == 1, done
    assert f"--set {field}: got {value}, expected a field that this command reads: " in str(done.exception)
    assert not Path("merged").exists()


def test_of_a_mapping_each_part_is_looked_at() -> None:
    reads = ("spec.rollout.temperature", "spec.data.train")
    changes = ["spec.data.train={uri: 'file:a.jsonl'}", "spec.data.train.promptField=question"]
    changed = load_job(JOB, [*changes, "spec.rollout={temperature: 0.5}"], reads).spec
    assert changed.data.train is not None and changed.data.train.prompt_field == "question"
    with pytest.raises(ManifestError, match=r"--set spec\.rollout\.topK: got 5") as refused:
        load_job(JOB, ["spec.rollout={temperature: 0.5, topK: 5}"], reads)
    assert len(refused.value.faults) == 1
    load_job(JOB, ["spec.rollout=null"], reads)
    with pytest.raises(ManifestError, match=r"--set spec\.data\.trainer"):
        load_job(JOB, ["spec.data.trainer=1"], reads)
