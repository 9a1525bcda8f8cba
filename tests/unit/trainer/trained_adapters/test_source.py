"""Finding an adapter and its base model: what is wrong is named before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lorarl_trainer import trained_adapters
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.inputs import read_source
from lorarl_trainer.rewards.source import fetched_sources
from lorarl_trainer.storage.fingerprint import fingerprint
from lorarl_trainer.storage.secrets import secrets_on_demand
from lorarl_trainer.trained_adapters.source import find_adapter
from unit.contract.manifests import SMALLEST


def made_base(folder: Path, value: float) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    save_file({"weight": np.full(4, value, np.float32)}, folder / "model.safetensors")
    return folder


def made_adapter(folder: Path, base: Path) -> Path:
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "lorarl_metadata.json").write_text(json.dumps({"baseModelFingerprint": fingerprint(base)}))
    save_file({"lora_A": np.ones(4, np.float32)}, folder / "adapter_model.safetensors")
    return folder


def test_what_changes_a_manifest_needs_one(tmp_path: Path) -> None:
    base, change = made_base(tmp_path / "base", 1.0), ["spec.model.uri=file:other"]
    adapter = made_adapter(tmp_path / "adapter", base)
    with pytest.raises(InputError, match=r"--set: got spec.model.uri=file:other for .* Name the manifest with --job"):
        find_adapter(str(adapter), None, change)
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(SMALLEST))
    changed = find_adapter(str(adapter), job, change, str(base)).job
    assert changed is not None and changed.spec.model.uri == "file:other"


WITH_SECRETS = {
    "model": {"uri": "file:base", "credentialsSecret": "of-hub"},
    "data": {"train": {"uri": "file:rows.jsonl"}, "credentialsSecret": "of-data"},
    "checkpoint": {"uri": "s3://adapters/sums", "credentialsSecret": "of-store"},
    "rollout": {"servers": ["http://vllm:8000"], "serverFolder": "/adapters", "credentialsSecret": "of-servers"},
    "tracking": {"wandb": {"project": "p", "credentialsSecret": "of-trackers"}},
    "reward": {"function": "rewards:score", "source": {"uri": "file:rewards.py", "credentialsSecret": "of-code"}},
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job none of whose Secrets is on this machine, and whose files all are, but for its checkpoints."""
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(tmp_path / "no secrets"))
    monkeypatch.chdir(tmp_path)
    made_base(tmp_path / "base", 1.0)
    (tmp_path / "base/tokenizer.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1 + 1", "answer": "2"}))
    (tmp_path / "rewards.py").write_text("def score(completion, row): return 1.0")
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(SMALLEST | {"spec": SMALLEST["spec"] | WITH_SECRETS}))
    return path


def test_a_command_needs_no_secret_that_it_does_not_use(job: Path) -> None:
    """chat, evaluate, merge and serve of what is on this machine: no key leads to it."""
    source = find_adapter(str(made_adapter(Path("adapter"), Path("base"))), job, ())
    assert source.job is not None and Path(source.base).samefile("base")
    spec = source.job.spec
    secrets = secrets_on_demand(spec)
    assert set(secrets) == {f"of-{what}" for what in ("hub", "data", "store", "servers", "trackers", "code")}
    (row,) = read_source(spec, spec.data.sources["spec.data.train"], field="spec.data.train", secrets=secrets)
    assert row.answer == "2"
    with fetched_sources(spec, secrets) as (_, sources):
        assert list(sources)


def test_a_secret_that_is_used_must_be_there(job: Path) -> None:
    with pytest.raises(InputError, match=r"spec\.checkpoint\.credentialsSecret: got 'of-store', expected a folder"):
        find_adapter("s3://adapters/sums/iter_0000003", job, ())


def test_no_command_with_an_adapter_reads_all_secrets() -> None:
    """`read_secrets` is for a run, which uses all that its job names."""
    folder = Path(trained_adapters.__file__).parent
    assert [path.name for path in folder.rglob("*.py") if "read_secrets" in path.read_text()] == []


def test_another_base_model_of_the_same_shape_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, other = made_base(tmp_path / "base", 1.0), made_base(tmp_path / "other", 2.0)
    adapter = made_adapter(tmp_path / "adapter", base)
    for named in (None, str(base)):
        assert find_adapter(str(adapter), None, [], named).base == str(base)
    assert capsys.readouterr().err == ""
    assert find_adapter(str(adapter), None, [], str(other)).base == str(other)
    assert f"warning: {other} is not the base model that this adapter was trained on" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["out/nowhere", "./nowhere", "/nowhere", "a/b/c"])
def test_a_base_model_s_path_without_a_folder_is_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    adapter = made_adapter(tmp_path / "adapter", made_base(tmp_path / "base", 1.0))
    with pytest.raises(InputError, match=rf"--base: got {path}, which is no folder"):
        find_adapter(str(adapter), None, [], path)
    assert find_adapter(str(adapter), None, [], "org/name").base == "org/name"


def test_a_quantization_that_this_version_does_not_know_is_refused(tmp_path: Path) -> None:
    adapter = made_adapter(tmp_path / "adapter", base := made_base(tmp_path / "base", 1.0))
    said = {"baseModelFingerprint": fingerprint(base), "baseModelQuantization": "int3"}
    (adapter / "lorarl_metadata.json").write_text(json.dumps(said))
    with pytest.raises(InputError, match="baseModelQuantization int3, expected one of none, fp8, nf4"):
        _ = find_adapter(str(adapter), None, []).quantization


def test_weights_that_are_not_whole_are_named(tmp_path: Path) -> None:
    adapter = made_adapter(tmp_path / "adapter", made_base(tmp_path / "base", 1.0))
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"whose adapter_model.safetensors cannot be read .*Copy or download"):
        find_adapter(str(adapter), None, [])


def test_a_checkpoint_that_is_gone_names_another_one(tmp_path: Path) -> None:
    store, run = tmp_path / "checkpoints/job", tmp_path / "out"
    made_adapter(store / "iter_0000005/lora_adapter", made_base(tmp_path / "base", 1.0))
    run.mkdir()
    newest = store / "iter_0000010/lora_adapter"
    summary = {"job": "job", "adapter_uri": f"file://{newest}", "manifest": json.dumps(SMALLEST)}
    (run / "run_summary.json").write_text(json.dumps(summary))
    with pytest.raises(
        InputError, match=r"checkpoint .*iter_0000010 is gone.* Name another checkpoint: .*iter_0000005"
    ):
        find_adapter(str(run), None, [])
