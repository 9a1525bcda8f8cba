"""Finding an adapter and its base model: what is wrong is named before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lorarl_trainer.errors import InputError
from lorarl_trainer.storage.fingerprint import fingerprint
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


def test_secrets_that_lead_to_nothing_here_need_not_be_here(tmp_path: Path) -> None:
    """Those of trackers, judges and servers stay where the run was."""
    base = made_base(tmp_path / "base", 1.0)
    job = tmp_path / "job.yaml"
    servers = {"servers": ["http://vllm:8000"], "serverFolder": "/adapters", "credentialsSecret": "of-servers"}
    tracking = {"wandb": {"project": "p", "credentialsSecret": "of-trackers"}}
    job.write_text(json.dumps(SMALLEST | {"spec": SMALLEST["spec"] | {"rollout": servers, "tracking": tracking}}))
    assert find_adapter(str(made_adapter(tmp_path / "adapter", base)), job, (), str(base)).job is not None


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
