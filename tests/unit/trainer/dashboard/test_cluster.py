"""Lines, sums and views of a cluster's jobs, and what the page of them needs of an image."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lorarl_trainer.cli import main
from lorarl_trainer.dashboard.cluster.access import AGAIN_SECONDS, FRESH_SECONDS, LONGEST_SECONDS, Access
from lorarl_trainer.dashboard.cluster.api import GONE, ApiError
from lorarl_trainer.dashboard.cluster.jobs import QUEUE_LABEL, JobRow, job_row
from lorarl_trainer.dashboard.cluster.records import job_folder
from lorarl_trainer.dashboard.cluster.usage import by_namespace, by_queue
from lorarl_trainer.dashboard.cluster.view import COLUMNS, JobView, Made, chosen, grouped
from lorarl_trainer.dashboard.cluster.watch import WatchedJobs
from lorarl_trainer.dashboard.serve import KEY

ROOT = Path(__file__).parents[4]
NOW = 1_800_000_000.0
ROWS = [
    JobRow(
        "a", "sums", "1", "Running", queue="research", gpus=8, held=3600, held_since=NOW - 900, useful=1800, created=3.0
    ),
    JobRow("a", "r8", "2", "Pending", "Queued", "no quota", "research", "sweep/rank", gpus=4, created=2.0),
    JobRow("a", "r32", "3", "Succeeded", maker="sweep/rank", gpus=4, held=10_000, lost=100, reward=0.5, created=1.0),
    JobRow("b", "r8", "4", "Failed", "RewardFailed", maker="sweep/rank", held=100, reward=0.9, created=4.0),
]


def job(**changes: Any) -> dict[str, Any]:
    meta = {"namespace": "team", "name": "sums", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": meta | changes.pop("metadata", {}), **changes}


def names(rows: list[JobRow]) -> str:
    return " ".join(row.id for row in rows)


def test_a_job_that_the_operator_has_not_seen_is_pending() -> None:
    row = job_row(job(spec={"model": {"uri": "hf://a/b"}, "algorithm": {"type": "grpo"}, "trainer": {"steps": 9}}))
    assert (row.phase, row.step, row.total_steps, row.base_model, row.algorithm) == (
        "Pending",
        0,
        9,
        "hf://a/b",
        "grpo",
    )
    assert row.created == 1767225600.0 and row.reward is None and row.held_at(NOW) == 0


def test_a_line_has_what_the_status_says() -> None:
    owner = {"kind": "LoRARLSweep", "name": "rank", "controller": True}
    meta = {"labels": {QUEUE_LABEL: "research"}, "ownerReferences": [{"kind": "Other", "name": "x"}, owner]}
    running = {"type": "Running", "status": "False", "reason": "Queued", "message": "m" * 5000}
    status = {
        "phase": "Running",
        "conditions": [{"type": "Complete", "reason": "Other"}, running],
        "gpus": 8,
        "heldGpuSeconds": 100,
        "gpusHeldSince": "2026-01-01T00:00:10Z",
        "gpuSeconds": {"useful": 5, "lost": 6, "startup": 7, "unsaved": 8},
        "metrics": {"reward": 1, "evalScore": 0.25},
        "record": "s3://team/adapters/sums/runs/0001",
    }
    row = job_row(job(metadata=meta, status=status))
    assert (row.reason, len(row.message), row.queue, row.maker) == ("Queued", 300, "research", "sweep/rank")
    assert (row.reward, row.eval_score, row.useful, row.lost, row.startup) == (1.0, 0.25, 5, 6, 7)
    assert row.held_at(row.created + 20) == 100 + 8 * 10 and row.holds == 8


@pytest.mark.parametrize("wrong", ["text", 7, True, [], [3], {"a": 1}, None])
def test_a_value_of_another_type_is_read_as_if_it_was_not_there(wrong: Any) -> None:
    fields = (
        "phase",
        "conditions",
        "metrics",
        "gpuSeconds",
        "gpusHeldSince",
        "record",
        "heldGpuSeconds",
        "gpus",
        "step",
    )
    for name in fields:
        assert isinstance(job_row(job(status={name: wrong})).held_at(NOW), float | int)
    for inner in ({"metrics": {"reward": wrong}}, {"gpuSeconds": {"useful": wrong}}, {"conditions": [{"type": wrong}]}):
        assert job_row(job(status=inner)).phase == "Pending"
    assert job_row(job(spec={"model": wrong, "trainer": wrong}, status=wrong)).base_model == ""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "b/r8 a/sums a/r8 a/r32"),
        ({"sort": ["hours"]}, "a/sums a/r32 b/r8 a/r8"),  # with what is held now
        ({"sort": ["result"]}, "b/r8 a/r32 a/sums a/r8"),
        ({"sort": ["result"], "turned": ["1"]}, "a/r32 b/r8 a/sums a/r8"),
        ({"namespace": ["a"], "sort": ["name"]}, "a/r32 a/r8 a/sums"),
        ({"reason": ["Queued"]}, "a/r8"),
        ({"text": ["QUOTA research"]}, "a/r8"),
        ({"maker": ["sweep/rank"], "namespace": ["a"]}, "a/r8 a/r32"),
        ({"phase": ["Failed"], "sort": ["nonsense"], "page": ["x"]}, "b/r8"),
    ],
)
def test_a_view_filters_and_sorts(query: dict[str, list[str]], expected: str) -> None:
    assert names(chosen(ROWS, JobView.of_query(query), NOW)) == expected


def test_every_column_sorts() -> None:
    for name in COLUMNS:
        assert len(chosen(ROWS, JobView(sort=name), NOW)) == len(ROWS)


def test_the_jobs_of_a_sweep_are_one_line_within_their_namespace() -> None:
    lines = grouped(chosen(ROWS, JobView(), NOW))
    assert [line.maker if isinstance(line, Made) else line.id for line in lines] == ["b/r8", "a/sums", "sweep/rank"]
    made = lines[-1]
    assert isinstance(made, Made)
    assert (names(list(made.rows)), made.created, made.gpus) == ("a/r8 a/r32", 2.0, 0)
    assert sorted(made.phases) == [("Pending", 1), ("Succeeded", 1)] and made.held_at(NOW) == 10_000


def test_gpu_time_is_summed_by_namespace_and_by_queue() -> None:
    first, second = by_namespace(ROWS, NOW)
    assert (first.name, first.jobs, first.running, first.waiting, first.gpus) == ("a", 3, 1, 1, 8)
    assert (first.held, first.useful, first.lost) == (3600 + 8 * 900 + 10_000, 1800, 100)
    assert (second.name, second.held) == ("b", 100)
    (queue,) = by_queue(ROWS, NOW)
    assert (queue.name, queue.jobs, queue.held) == ("a/research", 2, 3600 + 8 * 900)
    assert by_queue([], NOW) == []


@pytest.mark.parametrize(
    ("record", "folder"),
    [
        ("s3://team/adapters/sums/runs/0001", "sums"),
        ("s3://team/adapters/more/sums/runs/0012/", "more/sums"),
        ("s3://team/adapters/other/runs/0001", ""),
        ("s3://team/adapters/../secret/sums/runs/0001", ""),
        ("s3://team/adapters//sums/runs/0001", ""),
        ("s3://team/adapters/sums/runs/x", ""),
        ("s3://team/adapters/sums", ""),
        ("s3://team/adapters/", ""),
    ],
)
def test_a_record_is_named_as_those_of_its_job_are(record: str, folder: str) -> None:
    row = JobRow("team", "sums", "u", record=record)
    assert job_folder(row, "s3://team/adapters") == folder


def test_an_answer_is_kept_longer_while_the_server_is_away() -> None:
    clock = [0.0]
    asked: list[str] = []
    failing: list[ApiError] = []

    class Server:
        def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
            asked.append(path)
            if failing:
                raise failing[0]
            return {"status": {"authenticated": True, "user": {"username": "alice"}}}

    access = Access(Server(), now=lambda: clock[0])  # type: ignore[arg-type]
    assert access.reader("token") == access.reader("token") and len(asked) == 1
    remembered = repr(access._readers._answers)
    assert "alice" in remembered and "token" not in remembered, "only its digest"
    clock[0] = FRESH_SECONDS
    failing.append(ApiError(0, "away"))
    assert access.reader("token") is not None and access.reader("token") is not None
    assert len(asked) == 2, "it is not asked again at once"
    clock[0] += AGAIN_SECONDS
    assert access.reader("token") is not None and len(asked) == 3
    with pytest.raises(ApiError, match="away"):
        access.reader("another")
    clock[0] = LONGEST_SECONDS
    with pytest.raises(ApiError, match="away"):
        access.reader("token")
    failing.clear()
    assert access.reader("token") is not None
    failing.append(ApiError(403, "refused"))
    clock[0] += FRESH_SECONDS
    with pytest.raises(ApiError, match="refused"):
        access.reader("token")


class Served:
    """An API server's answers, in order: pages of lists, then the events of watches."""

    def __init__(self, pages: list[dict[str, Any]], watches: list[list[dict[str, Any] | ApiError]]) -> None:
        self.pages, self.watches = pages, watches
        self.versions: list[str] = []
        self.queries: list[dict[str, str]] = []

    def get(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        self.queries.append(dict(query))
        return self.pages.pop(0)

    def watch(self, path: str, version: str) -> Iterator[dict[str, Any]]:
        self.versions.append(version)
        return self._events(self.watches.pop(0))

    def _events(self, events: list[dict[str, Any] | ApiError]) -> Iterator[dict[str, Any]]:
        for event in events:
            if isinstance(event, ApiError):
                raise event
            yield event


def listed(version: str, *names: str, more: str = "") -> dict[str, Any]:
    meta = {"resourceVersion": version} | ({"continue": more} if more else {})
    return {"metadata": meta, "items": [named(name, version) for name in names]}


def named(name: str, version: str) -> dict[str, Any]:
    return job(metadata={"name": name, "resourceVersion": version})


def test_jobs_are_listed_in_pages_and_then_watched_from_there() -> None:
    events: list[dict[str, Any] | ApiError] = [
        {"type": "ADDED", "object": named("c", "11")},
        {"type": "DELETED", "object": named("a", "12")},
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "30"}}},
    ]
    api = Served([listed("10", "a", more="next"), listed("10", "b")], [events, []])
    jobs = WatchedJobs(api)  # type: ignore[arg-type]
    jobs.look()
    assert [row.name for row in jobs.rows()] == ["b", "c"] and jobs.listed
    assert [query.get("continue") for query in api.queries] == [None, "next"]
    jobs.look()
    assert api.versions == ["10", "30"], "a watch that ended continues, without another list"


def test_after_missed_changes_the_jobs_are_listed_again() -> None:
    class Ended(BaseException):
        """Ends the thread that follows, which nothing else does."""

    class Ending(Served):
        def watch(self, path: str, version: str) -> Iterator[dict[str, Any]]:
            if not self.watches:
                raise Ended
            return super().watch(path, version)

    api = Ending([listed("10", "a", "b"), listed("20", "b", "c")], [[ApiError(GONE, "too old")], []])
    jobs = WatchedJobs(api)  # type: ignore[arg-type]
    with pytest.raises(Ended):
        jobs.follow()
    assert [row.name for row in jobs.rows()] == ["b", "c"] and api.versions == ["10", "20"] and jobs.problem == ""


def test_its_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    def said(*arguments: str, **environment: str) -> str:
        done = CliRunner().invoke(main, ["dashboard", *arguments], env=environment)
        assert done.exit_code == 2 or done.exit_code == 1, done.output
        return " ".join((done.output + str(done.exception)).split())

    assert "--cluster: got no cluster" in said("--cluster")
    assert "--namespace: got team without --cluster" in said("--namespace", "team")
    assert "expected an object store, such as s3://team/adapters" in said("--cluster", f"file://{tmp_path}")
    assert f"{KEY}: got a key beside --cluster" in said("--cluster", **{KEY: "x"})


def test_the_operators_image_has_the_packages_that_it_needs() -> None:
    """A package that is not locked for it cannot be imported here, as if it was not installed."""
    locked = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "requirements/operator.lock").read_text(), re.MULTILINE)
    script = """
import importlib.metadata, sys
allowed = set(sys.argv[1].split(",")) | {"lorarl"}
distributions = importlib.metadata.packages_distributions()
class Absent:
    def find_spec(self, name, path=None, target=None):
        owners = {each.lower().replace("_", "-") for each in distributions.get(name.partition(".")[0], ())}
        if owners and not owners & allowed:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Absent())
import lorarl_trainer.cli.dashboard, lorarl_trainer.dashboard.cluster.serve
from kubernetes.client import Configuration
from kubernetes.config import load_incluster_config
from lorarl_trainer.dashboard.answers import message
from lorarl_trainer.dashboard.cluster.api import Api
from lorarl_trainer.storage import open_store
Api(Configuration())
message("a", "b", 200, "")
open_store("s3://team/adapters", {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "c"})
try:
    import torch
except ModuleNotFoundError:
    print("as in the image")
"""
    done = subprocess.run([sys.executable, "-c", script, ",".join(locked)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("as in the image\n", 0), done.stderr
