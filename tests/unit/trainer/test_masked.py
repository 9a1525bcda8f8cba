"""In a pod, the values of the mounted Secrets are masked exactly in what is printed and reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lorarl_trainer import masked
from lorarl_trainer.pods.status import failure

VALUE = "correct horse/battery+staple"
"""It has no form by which anyone would know it."""
PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END PRIVATE KEY-----\n"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "secrets" / "s3-keys"
    folder.mkdir(parents=True)
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(folder.parent))
    monkeypatch.setattr(masked, "_masks", masked.Masks())
    return folder


@pytest.mark.parametrize(
    "key",
    [
        *(
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "HF_TOKEN",
            "WANDB_API_KEY",
            "MLFLOW_TRACKING_PASSWORD",
            "my-own",
        ),
        *("SUPPORT_TOKEN", "HOSTED_JUDGE_API_KEY"),  # with PORT and HOST in them
    ],
)
def test_a_mounted_value_is_not_reported(secrets: Path, key: str) -> None:
    (secrets / key).write_text(f"{VALUE}\n")
    message = failure("WorkerFailed", f"score() raised: {VALUE!r} was refused", 1, datetime.now(UTC))["message"]
    assert message == "score() raised: '***' was refused"


def test_a_key_of_google_is_masked_in_each_form(secrets: Path) -> None:
    account = {"type": "service_account", "private_key_id": "0a1b2c3d", "private_key": PEM, "project_id": "research"}
    (secrets / "GOOGLE_SERVICE_ACCOUNT_KEY").write_text(json.dumps(account, indent=2))
    text = masked.without_secrets(f"of research: {json.dumps(PEM)} {PEM} kqhkiG9w0BAQEF 0a1b2c3d service_account")
    assert not any(part in text for part in ("MIIEvQ", "kqhkiG9w", "0a1b2c3d"))
    assert "of research" in text and "service_account" in text


def test_what_messages_need_stays(secrets: Path) -> None:
    """A Secret also has addresses and regions, and short values that are parts of words."""
    for key, value in {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://minio:9000", "pin": "step"}.items():
        (secrets / key).write_text(value)
    text = "step 3: http://minio:9000 in us-east-1 does not answer"
    assert masked.without_secrets(text) == text


def test_a_value_that_the_kubelet_replaces_is_masked_too(secrets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (secrets / "TOKEN").write_text("the first value")
    assert masked.without_secrets("the first value") == "***"
    (secrets / "TOKEN").write_text("the second value")
    monkeypatch.setattr(masked, "_FRESH_SECONDS", 0.0)
    assert masked.without_secrets("the second value") == "***"


PROGRAM = f"""
import os, sys
from lorarl_trainer.masked import mask_output
mask_output()
print("printed", {VALUE!r})
sys.stdout.writelines(["of the environment: ", os.environ["OTHER_PASSWORD"], "\\n"])
raise SystemExit({f"ended by {VALUE}"!r}) if len(sys.argv) > 1 else ValueError({VALUE!r})
"""


@pytest.mark.parametrize("arguments", [[], ["exit"]], ids=["an exception", "an exit"])
def test_a_process_of_a_pod_prints_no_value(secrets: Path, arguments: list[str]) -> None:
    (secrets / "TOKEN").write_text(VALUE)
    environment = os.environ | {"OTHER_PASSWORD": "from the environment"}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert "printed ***\n" in ended.stdout and "of the environment: ***\n" in ended.stdout
    assert "***" in ended.stderr
    assert VALUE not in ended.stdout + ended.stderr.replace(f"ValueError({VALUE!r})", "")


@pytest.mark.parametrize("command", [("drain",), ("validate", f"/{VALUE}.yaml"), ("upload", VALUE, "s3://x")])
def test_each_command_that_a_pod_runs_masks(secrets: Path, command: tuple[str, ...]) -> None:
    """The preStop hook and init containers run lorarl too, and the kubelet reports what they print."""
    (secrets / "TOKEN").write_text(VALUE)
    lorarl = Path(sys.executable).with_name("lorarl")
    environment = os.environ | {"LORARL_RUN_DIR": f"/dev/null/{VALUE}"}
    ended = subprocess.run([lorarl, *command], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "***" in ended.stdout + ended.stderr
    assert VALUE not in ended.stdout + ended.stderr


def test_on_a_persons_own_machine_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LORARL_SECRETS_DIR", raising=False)
    before = sys.stdout
    masked.mask_output()
    assert sys.stdout is before
    assert masked.without_secrets("password=hunter2") == "password=hunter2"
