"""Judges and reward models over HTTP, asked for real: what counts, what is repeated, and what is left out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import RewardSpec, ServerReward
from lorarl_trainer.errors import InputError, RewardServerError
from lorarl_trainer.rewards.scorer import make_job_scorer, make_scorer
from lorarl_trainer.rewards.scores import Outcome, ToScore, collect, require_scored
from lorarl_trainer.rewards.server.apis import request_body, status_hint
from lorarl_trainer.rewards.server.scorer import ServerScorer
from unit.trainer.launch.test_identity import MANIFEST
from unit.trainer.rewards.server.http_server import RunningServer, Server

JUDGE = "judge:{completion}"


@pytest.fixture
def server() -> Iterator[Server]:
    running = RunningServer()
    yield running.saw
    running.close()


@pytest.fixture
def ask(server: Server) -> Iterator[Callable[..., list[Outcome]]]:
    made: list[ServerScorer] = []

    def ask(*completions: str, timeout_seconds: float = 10.0, again: bool = False, **settings: Any) -> list[Outcome]:
        if not again:
            api = settings.get("api", "chat")
            asked = {"instruction": JUDGE} if api == "chat" else {}
            url = server.url + ("/v1" if api == "chat" else "")
            spec = ServerReward(**{"url": url, "model": "m", "retries": 2, **asked, **settings})
            path = "spec.reward.server"
            made.append(ServerScorer(spec, timeout_seconds=timeout_seconds, field=path, first_pause_seconds=0.0))
        samples = [ToScore("the prompt", completion, "the answer", {}) for completion in completions]
        return asyncio.run(made[-1].score(samples))

    yield ask
    for scorer in made:
        scorer.close()


def test_the_score_that_a_judge_writes_last_counts(ask, server: Server) -> None:
    outcomes = ask("7", "score 3; no: **Score:** 2.5", "10", "Score: 4/5")
    assert outcomes == [Outcome(0.7), Outcome(0.25), Outcome(1.0), Outcome(0.4)]
    assert server.paths == {"/v1/chat/completions": 4}
    assert server.requests[0] | {"messages": None} == {
        "model": "m",
        "messages": None,
        "temperature": 0.0,
        "max_tokens": 512,
    }
    assert ask("3", highest=4.0) == [Outcome(0.75)]


@pytest.mark.parametrize("api", ["classify", "pooling"])
def test_a_reward_model_gives_one_number(ask, server: Server, api: str) -> None:
    assert ask("[-3.5]", "[[2]]", api=api) == [Outcome(-3.5), Outcome(2.0)]
    assert server.paths == {f"/{api}": 2}
    asked = [request["messages"] for request in server.requests]  # in any order: both are under way at once
    assert [{"role": "user", "content": "the prompt"}, {"role": "assistant", "content": "[-3.5]"}] in asked
    [outcome] = ask("[1; 2]", api=api, retries=0)
    assert outcome.failure == f"wrong_type: {server.url}/{api} returned [1, 2] in place of one finite number"


@pytest.mark.parametrize(("retries", "connections"), [(0, 3), (1, 1)])
def test_only_a_request_that_is_repeated_may_meet_a_connection_that_ends(
    ask, server: Server, retries: int, connections: int
) -> None:
    assert ask("5", "6", "7", retries=retries, concurrency=1) == [Outcome(0.5), Outcome(0.6), Outcome(0.7)]
    assert len(server.connections) == connections


def limit_for(trouble: str) -> float:
    """Return the time limit of a request, which has to be short only for one that is never answered."""
    return 0.7 if trouble == "hang" else 10.0


@pytest.mark.parametrize("trouble", ["500", "503", "429", "drop", "html", "other", "I cannot say.", "11", "-1", "hang"])
def test_trouble_that_passes_costs_nothing(ask, server: Server, trouble: str) -> None:
    assert ask(f"{trouble},7", timeout_seconds=limit_for(trouble)) == [Outcome(0.7)]
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("trouble", "cause", "message"),
    [
        ("500", "server", "answers with status 500: status 500 (3 times)"),
        ("429", "server", "answers with status 429: status 429 (3 times)"),
        ("drop", "server", "cannot be reached (ServerDisconnectedError: Server disconnected) (3 times)"),
        ("html", "wrong_type", "returned no JSON: '<html>' (3 times)"),
        ("deep", "wrong_type", f"returned no JSON: '{'[' * 80}' (3 times)"),
        ("other", "wrong_type", "returned an answer of another form: {'choices': []} (3 times)"),
        ("Fine.", "wrong_type", "returned a reply without 'Score: NUMBER': 'Fine.' (3 times)"),
        ("11", "wrong_type", "returned the score 11, which is not in 0 to 10 (3 times)"),
        ("hang", "server", "took more than 0.7 s (3 times)"),
    ],
)
def test_trouble_that_stays_leaves_the_sample_out(ask, server: Server, trouble: str, cause: str, message: str) -> None:
    failed, fine = ask(trouble, "5", timeout_seconds=limit_for(trouble))
    assert (failed.cause, failed.message) == (cause, f"{server.url}/v1/chat/completions {message}")
    assert failed.value != failed.value, "no silent 0"
    assert fine == Outcome(0.5)
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:99999/v1", "Port out of range 0-65535"),
        ("http://[::1/v1", "Invalid IPv6 URL"),
        ("http://judge..svc/v1", "label empty or too long"),
    ],
)
def test_a_url_that_is_none_is_named_and_not_repeated(ask, server: Server, url: str, why: str) -> None:
    [outcome] = ask("5", url=url)
    assert outcome.cause == "server" and f"{url}/chat/completions is not a valid address" in outcome.message
    assert why in outcome.message and "times" not in outcome.message


def test_a_reward_models_number_beyond_a_floats_range_is_none(ask) -> None:
    [outcome] = ask("1" + "0" * 400, api="classify", retries=0)
    assert outcome.cause == "wrong_type" and "in place of one finite number" in outcome.message


def test_a_refusal_is_not_repeated(ask, server: Server) -> None:
    [outcome] = ask("401")
    assert outcome.failure == (
        f"server: {server.url}/v1/chat/completions answers with status 401: status 401; "
        "spec.reward.server.credentialsSecret names a Secret with its key, OPENAI_API_KEY"
    )
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("api", "url", "said", "hint"),
    [
        (
            "chat",
            "http://j:8000/",
            "Not Found",
            "; most servers have it below /v1, so try spec.reward.server.url http://j",
        ),
        ("chat", "http://j:8000/v1", "Not Found", ""),
        (
            "chat",
            "http://j/v1",
            "The model `m` does not exist",
            "; spec.reward.server.model names a model that this server",
        ),
        (
            "classify",
            "http://j:8000/v1",
            "Not Found",
            "; vLLM has it without /v1, so try spec.reward.server.url http://j:8000",
        ),
    ],
)
def test_what_is_not_found_is_a_hint_at_the_manifest(api: str, url: str, said: str, hint: str) -> None:
    found = status_hint("spec.reward.server", url, "`m`", api, 404, said)
    assert found.startswith(hint) and bool(found) is bool(hint)


def test_a_server_that_is_down_is_named(ask, server: Server) -> None:
    [outcome] = ask("5", url="http://127.0.0.1:9/v1", retries=1)
    assert outcome.cause == "server"
    assert outcome.message.startswith("http://127.0.0.1:9/v1/chat/completions cannot be reached (ClientConnectorError")
    assert outcome.message.endswith("(2 times)")


def test_repeats_wait_longer_each_time(server: Server) -> None:
    spec = ServerReward(url=f"{server.url}/v1", model="m", retries=2, instruction=JUDGE)
    scorer = ServerScorer(spec, timeout_seconds=5.0, field="f", first_pause_seconds=0.1)
    began = time.monotonic()
    asyncio.run(scorer.score([ToScore("p", "500,500,5", None, {})]))
    scorer.close()
    assert time.monotonic() - began >= 0.3


def test_the_same_completion_is_asked_once(ask, server: Server) -> None:
    assert ask("5", "5", "6") == [Outcome(0.5), Outcome(0.5), Outcome(0.6)]
    assert ask("6", "5", again=True) == [Outcome(0.6), Outcome(0.5)]
    assert len(server.requests) == 2


def test_a_failure_is_not_remembered(ask, server: Server) -> None:
    [outcome] = ask("500,500,500,5")
    assert outcome.cause == "server"
    assert ask("500,500,500,5", again=True) == [Outcome(0.5)]


def test_as_many_requests_run_at_a_time_as_allowed(ask, server: Server) -> None:
    server.wait_for = 3  # none is answered before three are there
    assert len(ask(*(f"{number}" for number in range(9)), concurrency=3)) == 9
    assert server.most_at_a_time == 3


def test_the_key_of_the_secret_is_sent(ask, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of ~/.netrc does not take its place."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    (tmp_path / "netrc").chmod(0o600)
    (tmp_path / "judge-key").mkdir()
    (tmp_path / "judge-key" / "OPENAI_API_KEY").write_text("sk-7\n")
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(tmp_path))
    ask("6")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    [scored] = ask("5", credentials_secret="judge-key")
    assert scored == Outcome(0.5)
    assert [headers.get("Authorization") for headers in server.headers] == [None, "Bearer sk-7"]


def test_a_secret_without_the_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judge-key").mkdir()
    (tmp_path / "judge-key" / "TOKEN").write_text("t")
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(tmp_path))
    server = {"url": "http://judge/v1", "model": "m", "credentials_secret": "judge-key"}
    scorer = make_scorer(RewardSpec(server=ServerReward(**server)), Path(), "spec.rewards[2]")
    with pytest.raises(InputError) as refused:
        asyncio.run(scorer.ready())
    assert str(refused.value) == (
        "spec.rewards[2].server.credentialsSecret: got 'judge-key' without the key OPENAI_API_KEY, expected a Secret "
        "with the key OPENAI_API_KEY. Add OPENAI_API_KEY."
    )


def test_closing_ends_requests_that_wait(ask, server: Server) -> None:
    spec = ServerReward(url=f"{server.url}/v1", model="m", instruction=JUDGE)
    scorer = ServerScorer(spec, timeout_seconds=3600.0, field="f")

    async def close_once_it_is_asked() -> None:
        task = asyncio.create_task(scorer.score([ToScore("p", "hang", None, {})]))
        while not server.requests:
            await asyncio.sleep(0)
        await asyncio.to_thread(scorer.close)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(close_once_it_is_asked())
    assert "reward server" not in {thread.name for thread in threading.enumerate()}


def test_an_instruction_has_the_prompt_the_answer_and_the_completion() -> None:
    spec = ServerReward(url="http://judge/v1", model="m", instruction="{prompt}|{answer}|{completion}|{highest}|{x}")
    turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi {answer}"}]
    body = request_body(spec, ToScore(turns, "Hello {prompt}", None, {}))
    assert body["messages"] == [
        {"role": "user", "content": "system: Be kind.\nuser: Hi {answer}||Hello {prompt}|10|{x}"}
    ]
    usual = request_body(ServerReward(url="http://judge/v1", model="m"), ToScore("2+2?", "5", "4", {}))
    text = usual["messages"][0]["content"]
    assert all(part in text for part in ("2+2?", "\n4\n", "\n5\n", "to 10 (right", "Score: NUMBER"))


def test_a_judge_is_one_of_several_rewards(server: Server) -> None:
    judge = f"{{name: judge, weight: 0.5, server: {{url: '{server.url}/v1', model: m, instruction: '{JUDGE}'}}}}"
    job = load_job(MANIFEST, ["spec.reward=null", f"spec.rewards=[{{name: right, type: exact}}, {judge}]"])
    scorer = make_job_scorer(job.spec, Path())
    assert scorer is not None
    assert asyncio.run(scorer.score([ToScore("p", "8", "8", {})])) == [
        Outcome(1.4, components={"right": 1.0, "judge": 0.8})
    ]
    scorer.close()


def test_a_server_that_gives_no_score_at_all_is_no_fault_of_the_manifest() -> None:
    """So another attempt is worth it, unlike after an InputError."""
    failed = [Outcome.failed("server", "down")] * 2
    with pytest.raises(RewardServerError, match=r"spec\.reward\.server: no score for any of 2 .*Check that the"):
        collect(failed, "spec.reward.server")
    with pytest.raises(RewardServerError, match=r"spec\.reward\.maxFailedShare: got 2 of 3 .*down"):
        require_scored([*failed, Outcome(1.0)], {"spec.reward": 0.5}, "in step 1")
