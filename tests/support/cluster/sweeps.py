"""LoRARLSweeps for tests, and what their trials report."""

from __future__ import annotations

from typing import Any

from support.cluster.client import Api, Object
from support.cluster.lorarljobs import lorarljob, report

KIND = "LoRARLSweep"
HELD_OUT = {"uri": "s3://team/eval.jsonl", "promptField": "prompt", "answerField": "answer"}


def lorarlsweep(namespace: str, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A sweep of small jobs on CPUs over four seeds, two at a time, by the loss of `checkpoint.keepBest`."""
    job = lorarljob(namespace, name)["spec"]
    job["data"] |= {"eval": HELD_OUT}
    job["checkpoint"] |= {"keepBest": {}}
    usual = {
        "template": {"spec": job},
        "over": [{"path": "spec.trainer.seed", "values": [0, 1, 2, 3]}],
        "parallelism": 2,
        "objective": {"metric": "best"},
    }
    about = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {"apiVersion": "lorarl.io/v1alpha1", "kind": KIND, "metadata": about, "spec": usual | spec}


def reports_loss(api: Api, namespace: str, job: str, step: int, loss: float, total: int = 10) -> None:
    """What the trainer of a trial applies after an evaluation that is its best."""
    uri = f"s3://team/adapters/{job}/iter_{step:07d}/lora_adapter"
    best = {"uri": uri, "step": step, "metric": "eval_loss", "value": loss, "sha256": f"{step:08x}" * 8}
    report(api, namespace, job, step=step, totalSteps=total, best=best, metrics={"evalScore": loss})


def phases(sweep: Object) -> dict[str, str]:
    """The phase of each trial, by the last part of its name."""
    trials = sweep.get("status", {}).get("trials") or []
    return {one["name"].rpartition("-")[2]: one["phase"] for one in trials}
