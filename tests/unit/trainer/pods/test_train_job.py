"""Progress in a TrainJob's status, at a loopback server with TLS that answers as Kubeflow Trainer's does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lorarl_trainer.launch.runtime import local_runtime
from lorarl_trainer.pods import train_job
from lorarl_trainer.pods.train_job import TrainJobSink, trainer_status
from lorarl_trainer.progress import Progress, RunFinished, Warned
from lorarl_trainer.progress.events import Event
from support.train_job_server import TrainJobServer, train_job_server
from unit.trainer.pods.test_status import CHECKPOINT, EVALUATED, JOB, STARTED, STEP

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
WAIT = 30.0
LAST = replace(STEP, step=30)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TrainJobServer]:
    with train_job_server(tmp_path / "server") as running:
        yield running


def sink(server: TrainJobServer) -> TrainJobSink:
    (made,) = TrainJobSink.of_environment(JOB, server.environment)
    return made


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, {}),
        ({"step": 0, "totalSteps": 30}, {"progressPercentage": 0}),
        ({"step": 29, "totalSteps": 30}, {"progressPercentage": 96}),
        ({"step": 30, "totalSteps": 30, "estimatedRemainingSeconds": 0}, None),
        ({"estimatedRemainingSeconds": 2**40}, {"estimatedRemainingSeconds": 2**31 - 1}),
        ({"metrics": {"kl": 1e-7}}, {"metrics": [{"name": "kl", "value": "1e-07"}]}),
    ],
)
def test_a_status_is_expressed_as_kubeflow_has_it(
    status: dict[str, object], expected: dict[str, object] | None
) -> None:
    whole = {"progressPercentage": 100, "estimatedRemainingSeconds": 0} if expected is None else expected
    assert trainer_status(status, NOW) == {"lastUpdatedTime": "2026-01-31T12:00:00Z", **whole}


def test_what_users_wait_for_is_sent_at_once_and_steps_are_not(
    server: TrainJobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_job, "STEP_SECONDS", 1e9)
    one = sink(server)
    for event in (STARTED, STEP, EVALUATED, replace(STEP, step=8)):
        one.on_event(event)
    assert server.arrived.get(timeout=WAIT)[1]["trainerStatus"]["progressPercentage"] == 0
    token, body = server.arrived.get(timeout=WAIT)
    assert token == "Bearer first"
    assert body["trainerStatus"]["progressPercentage"] == 23
    assert {"name": "evalScore", "value": "0.75"} in body["trainerStatus"]["metrics"]
    assert server.arrived.empty()
    one.close()
    assert server.arrived.get(timeout=WAIT)[1]["trainerStatus"]["progressPercentage"] == 26


def test_steps_are_sent_when_the_last_request_is_long_ago(
    server: TrainJobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_job, "STEP_SECONDS", 0.0)
    one = sink(server)
    for event in (STARTED, STEP):
        one.on_event(event)
    assert [server.arrived.get(timeout=WAIT)[1]["trainerStatus"]["progressPercentage"] for _ in range(2)] == [0, 23]


def test_a_new_token_is_used(server: TrainJobServer) -> None:
    one = sink(server)
    one.on_event(STARTED)
    server.token.write_text("second\n")
    one.on_event(CHECKPOINT)
    assert [server.arrived.get(timeout=WAIT)[0] for _ in range(2)] == ["Bearer first", "Bearer second"]


def warnings(server: TrainJobServer, *events: Event) -> list[str]:
    """The warnings of a run in which these events happen."""
    found: list[str] = []

    class Warnings:
        name = "warnings"

        def on_event(self, event: Event) -> None:
            found.extend([event.text] if isinstance(event, Warned) else [])

        def close(self) -> None:
            """Nothing is left."""

    with Progress(direct=[Warnings()], queued=[Warnings(), sink(server)], close_seconds=WAIT) as progress:
        for event in events:
            progress.emit(event)
    return sorted(set(found))


FINISHED = RunFinished(state="succeeded", step=30, adapter_uri="a", total_seconds=1.0, message="", reason="")


def test_a_server_that_refuses_for_a_time_is_asked_again(server: TrainJobServer) -> None:
    answers = iter([(403, {"message": "Forbidden"}), (500, {}), (200, {})])
    server.answer = lambda body: next(answers)
    assert warnings(server, STARTED, EVALUATED, LAST, FINISHED) == []


@pytest.mark.parametrize(
    "broken", [{"TOKEN": "/no/token"}, {"CA_CERT": "/no/ca"}, {"URL": "https://127.0.0.1:1/status"}]
)
def test_a_server_that_cannot_be_asked_is_a_warning_at_the_end(server: TrainJobServer, broken: dict[str, str]) -> None:
    server.environment |= {f"KUBEFLOW_TRAINER_SERVER_{name}": value for name, value in broken.items()}
    (warning,) = warnings(server, STARTED, LAST, FINISHED)
    assert warning.startswith("the TrainJob's status: ")


def test_the_servers_answer_is_in_the_warning(server: TrainJobServer) -> None:
    server.answer = lambda body: (422, {"message": "progressPercentage: Invalid value"})
    (warning,) = warnings(server, STARTED, LAST, FINISHED)
    assert "HTTP Error 422" in warning and "progressPercentage: Invalid value" in warning


def test_a_run_reports_where_kubeflow_asks_for_it(
    server: TrainJobServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local_runtime(JOB, tmp_path / "out").sinks == ()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    assert [one.name for one in local_runtime(JOB, tmp_path / "out").sinks] == ["the TrainJob's status"]
    monkeypatch.delenv("KUBEFLOW_TRAINER_SERVER_TOKEN")
    assert local_runtime(JOB, tmp_path / "out").sinks == ()
