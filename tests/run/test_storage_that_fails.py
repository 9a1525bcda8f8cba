"""Object storage that refuses writes during training, and two runs that write to one place. The server is real.

One job, whose base model is in the store too: the second test continues where the first left it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lorarl_trainer.progress import read_rows
from lorarl_trainer.record.reader import JobRecord
from lorarl_trainer.storage import open_store
from run.command import Ended, digest
from run.jobs import STEPS, Job, published_steps
from support.cluster.tools import tools_or_skip
from support.fault_proxy import FOREVER, FaultProxy, fault_proxy
from support.s3_server import s3_server

BUCKET = "team"
ON_S3 = (
    f"checkpoint.uri=s3://{BUCKET}/adapters",
    "checkpoint.credentialsSecret=s3-keys",
    f"model.uri=s3://{BUCKET}/base",
    "model.credentialsSecret=s3-keys",
)


@dataclass
class Stored:
    """A job whose checkpoints go to a bucket, the proxy in front of the bucket, and the server's folder with them."""

    job: Job
    proxy: FaultProxy
    checkpoints: Path
    secret: dict[str, str]


def test_a_checkpoint_that_the_store_refuses_is_kept_on_this_machine(stored: Stored) -> None:
    stored.proxy.answer(403, times=FOREVER, method="PUT", path="iter_0000(00[3-9]|01)")
    ended = stored.job.run(*ON_S3)
    assert ended.code == 1, ended
    kept = stored.job.out / "unpublished" / "iter_0000004"
    assert (
        f"The checkpoint of step 4 could not be published: spec.checkpoint.uri: s3://{BUCKET}/adapters/letters/iter_0000004/"
        in ended.stderr
    )
    assert "403" in ended.stderr
    assert f"It is kept in {kept.relative_to(stored.job.folder)}" in ended.stderr
    assert "start the same job on this machine to resume from it" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1, "one message"
    assert (kept / "lora_adapter" / "adapter_model.safetensors").is_file()
    assert published_steps(stored.checkpoints) == [2]
    assert (ended.summary["state"], ended.summary["step"] >= 4) == ("failed", True)
    assert ended.left_running == []
    weights = [path for method, path in stored.proxy.requests if method == "GET" and "model.safetensors" in path]
    assert len(weights) == 1, "the workers use what the driver has fetched"


def test_the_newer_of_two_runs_resumes_from_what_was_kept(stored: Stored, reference: Ended) -> None:
    """The older one is fenced off."""
    stored.proxy.heal()
    stored.job.gate.touch()
    older = stored.job.start(*ON_S3, out=stored.job.folder / "older")
    older.wait_for_output("job letters")  # it has claimed the checkpoints, and stands still in its first step
    assert [row["step"] for row in read_rows(older.out / "metrics.jsonl")] == [0, 1, 2], "from the first run's record"

    newer = stored.job.start(*ON_S3, gated=False).end()

    assert newer.code == 0, newer
    assert newer.summary["resumed_from_step"] == 4
    assert newer.rows_but_for_times == reference.rows_but_for_times
    adapter = stored.checkpoints / f"iter_{STEPS:07}" / "lora_adapter" / "adapter_model.safetensors"
    assert newer.adapter_uri == f"s3://{BUCKET}/adapters/letters/iter_{STEPS:07}/lora_adapter"
    assert digest(adapter) == reference.adapter_digest

    stored.job.gate.unlink()
    fenced = older.end()

    assert fenced.code == 1, fenced
    assert "took over at" in fenced.stderr
    assert "To run both, give one of them another metadata.name or spec.checkpoint.uri" in fenced.stderr
    assert len(fenced.stderr.splitlines()) == 1, "one message"
    assert fenced.left_running == []
    assert digest(adapter) == reference.adapter_digest
    assert published_steps(stored.checkpoints)[-1] == STEPS

    records = [stored.checkpoints / "runs" / name for name in ("0001", "0002", "0003")]
    assert (records[2] / "metrics.jsonl").read_bytes() == (newer.out / "metrics.jsonl").read_bytes()
    assert (records[2] / "report.html").exists()
    ends = [json.loads((record / "events.jsonl").read_text().splitlines()[-1]) for record in records[:2]]
    assert [(end["event"], end["reason"]) for end in ends] == [
        ("RunFinished", "StorageFailed"),
        ("RunFinished", "Fenced"),
    ]


@pytest.mark.long
def test_a_killed_run_continues_its_curves_on_another_machine(stored: Stored) -> None:
    """No file of the first machine is there. A new name has a new folder in the store."""
    stored.proxy.heal()
    there, here = stored.job.folder / "there", stored.job.folder / "here"
    record = stored.checkpoints.parent / "moved" / "runs" / "0001"
    moved = ["--set", "metadata.name=moved"]
    run = stored.job.start(*ON_S3, out=there, more=moved)
    run.wait_for_step(5)
    stored.job.gate.touch()
    run.wait_until(lambda: len(read_rows(record / "metrics.jsonl")) >= 5, "step 4 was in the record")
    run.kill()
    run.end()
    stored.job.gate.unlink()

    ended = stored.job.start(*ON_S3, out=here, more=moved).end()
    assert ended.code == 0, ended
    assert ended.summary["resumed_from_step"] >= 4
    assert [row["step"] for row in ended.rows] == list(range(STEPS + 1))
    assert [start["resumed_from_step"] for start in ended.summary["starts"]] == [
        None,
        ended.summary["resumed_from_step"],
    ]
    store = open_store(f"s3://{BUCKET}/adapters", stored.secret)
    lost, succeeded = JobRecord(store, "moved").history()
    assert (lost.state, succeeded.state, succeeded.step) == ("lost", "succeeded", STEPS)
    assert succeeded.resumed_from == ended.summary["resumed_from_step"]


@pytest.fixture(scope="module")
def stored(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    job = Job(tmp_path_factory.mktemp("stored"), base)
    with tools_or_skip(), s3_server() as server, fault_proxy(server.url) as proxy:
        server.make_bucket(BUCKET)
        job.write_secret("s3-keys", server.secret(proxy.url))
        job.environment["LORARL_CACHE"] = str(job.folder / "cache")
        for file in base.iterdir():
            open_store(f"s3://{BUCKET}/base", server.secret()).put(file.name, file.read_bytes())
        yield Stored(job, proxy, server.root / BUCKET / "adapters" / job.checkpoints.name, server.secret())
