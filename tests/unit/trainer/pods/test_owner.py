"""What a job's folder records about its job."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.checkpoint import Owner
from lorarl_trainer.pods import owner
from unit.trainer.pods.test_status import MANIFEST


def test_outside_a_cluster_a_job_has_only_its_name() -> None:
    """A manifest on a laptop may name a namespace, which is nowhere."""
    assert owner.owner_of(load_job(MANIFEST)) == Owner("tiny")


def test_a_rotation_of_certificates_makes_no_other_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = load_job(MANIFEST.replace("namespace: team", "namespace: team, uid: u"))
    monkeypatch.setenv(owner.CLUSTER, "uid-of-kube-system")
    for certificate in ("one", "rotated"):
        (tmp_path / certificate).write_text(certificate)
        monkeypatch.setattr(owner, "CLUSTER_CERTIFICATE", tmp_path / certificate)
        assert owner.owner_of(job) == Owner("tiny", "u", "team", "uid-of-kube-system")


def test_in_a_cluster_its_authority_distinguishes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(owner.CLUSTER, raising=False)
    job = load_job(MANIFEST.replace("namespace: team", "namespace: team, uid: u"))
    found = []
    for certificate in ("one", "another"):
        (tmp_path / certificate).write_text(certificate)
        monkeypatch.setattr(owner, "CLUSTER_CERTIFICATE", tmp_path / certificate)
        found.append(owner.owner_of(job))
    assert [(one.uid, one.namespace) for one in found] == [("u", "team")] * 2
    assert found[0].cluster != found[1].cluster
    monkeypatch.setattr(owner, "CLUSTER_CERTIFICATE", tmp_path / "absent")
    assert owner.owner_of(job) == Owner("tiny", "u", "team", None)
