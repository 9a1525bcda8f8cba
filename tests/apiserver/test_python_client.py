"""`lorarl.Client` with a real API server and operator: a job from `submit` to the end of `wait`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lorarl
from support.cluster.lorarljobs import lorarljob, report
from support.cluster.operator import Operator
from support.cluster.platform import Platform


@pytest.fixture(scope="module")
def p(kuberay_platform: Platform, replica: Operator) -> Platform:
    return kuberay_platform


@pytest.fixture(autouse=True)
def _kubectl(p: Platform, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", f"{Path(p.cluster.kubectl_path).parent}:{os.environ['PATH']}")
    yield


def client(p: Platform, namespace: str | None = None) -> lorarl.Client:
    return lorarl.Client(namespace, kubeconfig=p.cluster.kubeconfig)


def test_a_job_is_submitted_and_awaited(p: Platform, capsys: pytest.CaptureFixture[str]) -> None:
    namespace = p.namespace("python")
    job = client(p, namespace).submit(lorarljob(namespace, "whole"), {"spec.trainer.steps": 4})
    p.api.wait("LoRARLJob", "whole", namespace, lambda job: job.get("status", {}).get("phase") == "Running", seconds=30)
    assert job.phase == "Running"
    with pytest.raises(TimeoutError, match="whole  Running"):
        job.wait(timeout=0)
    report(p.api, namespace, "whole", step=4, totalSteps=4, progress="4/4")
    ends = threading.Timer(1.0, lambda: p.finish(namespace, "whole-1", "SUCCEEDED"))
    ends.start()
    assert job.wait() is job
    ends.join()
    assert job.phase == "Succeeded"
    assert "whole  Succeeded  step 4/4" in capsys.readouterr().out


def test_a_failed_job_raises_why(p: Platform) -> None:
    namespace = p.namespace("python")
    found = lorarljob(namespace, "bad", backoffLimit=0)
    job = client(p).submit(found)  # the manifest names the namespace
    p.api.wait("LoRARLJob", "bad", namespace, lambda job: job.get("status", {}).get("phase") == "Running", seconds=30)
    p.finish(namespace, "bad-1", "FAILED", "the data ran out")
    with pytest.raises(lorarl.LorarlError, match=r"bad  Failed[\s\S]*Failed=True"):
        job.wait()
    assert "Failed=True" in repr(client(p, namespace).job("bad"))
    job.delete()
    p.api.wait_gone("LoRARLJob", "bad", namespace)


def test_a_fault_is_found_before_the_api_server_is_asked(p: Platform) -> None:
    with pytest.raises(lorarl.ManifestError, match="Did you mean steps"):
        client(p).submit(lorarljob("nowhere", "bad", trainer={"step": 3}))
    pods = {"worker": {"spec": {"nodeSelecter": {"a": "b"}}}}
    with pytest.raises(lorarl.ManifestError, match="nodeSelector"):
        client(p).submit(lorarljob("nowhere", "bad", cluster={"podTemplateOverrides": pods}))


def test_what_the_api_server_says_is_raised(p: Platform) -> None:
    with pytest.raises(lorarl.LorarlError, match='namespaces "nowhere" not found'):
        client(p).submit(lorarljob("nowhere", "lost"))
