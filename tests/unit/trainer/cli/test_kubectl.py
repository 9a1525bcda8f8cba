"""What `kubectl lorarl` makes of the words of kubectl."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_trainer.cli.kubectl.api import ApiError, Kubectl

UNREACHABLE = """\
E1123 22:05:43.275082    9176 memcache.go:265] "Unhandled Error" err="couldn't get current server API group list"
E1123 22:05:43.276621    9176 memcache.go:265] "Unhandled Error" err="couldn't get current server API group list"
The connection to the server localhost:8080 was refused - did you specify the right host or port?
"""


def test_an_error_is_kubectls_own_without_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "said").write_text(UNREACHABLE)
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/said >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ApiError) as found:
        Kubectl().job("sums")
    first, last = str(found.value).splitlines()
    assert first == f"kubectl get lorarljobs.lorarl.io sums: {UNREACHABLE.splitlines()[-1]}"
    assert last == "A job that is gone may have left its record: --record s3://.../sums"
