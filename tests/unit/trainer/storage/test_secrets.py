from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.errors import InputError
from lorarl_trainer.storage import read_secret
from lorarl_trainer.storage.credentials import client_for
from lorarl_trainer.storage.secrets import read_secrets
from lorarl_trainer.storage.uri import parse_uri
from unit.contract.manifests import manifest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(tmp_path))
    return tmp_path


def test_each_file_is_a_key_and_trailing_newlines_are_no_part_of_it(folder: Path) -> None:
    (folder / "s3-keys").mkdir()
    (folder / "s3-keys/AWS_ACCESS_KEY_ID").write_text("key\n")
    (folder / "s3-keys/AWS_SECRET_ACCESS_KEY").write_text(" two\nlines \r\n")
    assert read_secret("s3-keys") == {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": " two\nlines "}


def test_a_secret_as_the_kubelet_mounts_it_is_read(folder: Path) -> None:
    secret = folder / "s3-keys"
    (secret / "..2026_01_01").mkdir(parents=True)
    (secret / "..2026_01_01/AWS_REGION").write_text("eu-central-1")
    (secret / "..data").symlink_to("..2026_01_01")
    (secret / "AWS_REGION").symlink_to("..data/AWS_REGION")
    assert read_secret("s3-keys") == {"AWS_REGION": "eu-central-1"}


def test_a_missing_secret_says_how_to_make_it(folder: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_secret("s3-keys", "spec.checkpoint.credentialsSecret")
    message = str(refused.value)
    assert message.startswith("spec.checkpoint.credentialsSecret: got 's3-keys'")
    assert f"mkdir -p -m 700 {folder}/s3-keys" in message
    assert f"{folder}/s3-keys/AWS_ACCESS_KEY_ID" in message


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"spec.reward": {"server": {"url": "http://j/v1", "model": "m", "credentialsSecret": "s"}}}, "OPENAI_API_KEY"),
        ({"spec.model": {"uri": "hf://a/b", "credentialsSecret": "s"}}, "HF_TOKEN"),
        ({"spec.data.credentialsSecret": "s", "spec.data.train.uri": "az://a/b.csv"}, "AZURE_STORAGE_ACCOUNT_KEY"),
        ({"spec.checkpoint": {"uri": "gs://a/b", "credentialsSecret": "s"}}, "GOOGLE_SERVICE_ACCOUNT_KEY"),
        ({"spec.checkpoint": {"uri": "s3://a/b", "credentialsSecret": "s"}}, "AWS_ACCESS_KEY_ID"),
        ({"spec.tracking": {"wandb": {"project": "p", "credentialsSecret": "s"}}}, "WANDB_API_KEY"),
    ],
)
def test_a_missing_secret_names_a_key_that_its_field_needs(folder: Path, changes: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=f"one file per key: {folder}/s/{key} contains the key"):
        read_secrets(LoRARLJob.model_validate(manifest(changes)).spec)


def test_an_empty_secret_is_refused(folder: Path) -> None:
    (folder / "s3-keys").mkdir()
    with pytest.raises(InputError, match="at least one file"):
        read_secret("s3-keys")


def test_a_secret_that_is_no_text_is_refused_without_showing_it(folder: Path) -> None:
    (folder / "s3-keys").mkdir()
    (folder / "s3-keys/KEY").write_bytes(b"hush\xff")
    with pytest.raises(InputError, match="UTF-8") as refused:
        read_secret("s3-keys")
    assert "hush" not in str(refused.value)


def test_without_the_variable_secrets_lie_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LORARL_SECRETS_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config/lorarl/secrets/hub").mkdir(parents=True)
    (tmp_path / ".config/lorarl/secrets/hub/HF_TOKEN").write_text("token")
    assert read_secret("hub") == {"HF_TOKEN": "token"}


def test_a_machine_without_ca_certificates_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not as bad keys, of which the store's client speaks in the same way."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nothing"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    with pytest.raises(
        InputError, match=r"spec\.checkpoint\.uri: got s3://bucket/runs on a machine without CA certificates.*SSL_CERT"
    ):
        client_for(parse_uri("s3://bucket/runs", "spec.checkpoint.uri"), keys, 10.0, "spec.checkpoint.uri")
