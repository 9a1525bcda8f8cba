"""A teacher over HTTP, asked for real: what its answers mean, and what becomes of those that mean nothing."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from lorarl_api.v1alpha1.algorithm_options import TeacherServer
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.dry_run.teacher_trial import try_teacher
from lorarl_trainer.errors import InputError, RewardServerError
from lorarl_trainer.rewards.scores import Outcome, ToScore, collect, require_scored
from lorarl_trainer.rewards.server.teacher import Teacher, differ
from support.serving import catch_all, serving

FIELD = "spec.algorithm.distillation.server"
PROMPT = [11, 12]
NO_LOGPROBS = {"nan": math.nan, "impossible": -9999.0, "logit": 3.5, "huge": 10**400}


def text_of(token: int) -> str:
    return f" t{token}"


class Teaches:
    """Answers as vLLM does: the log-probability of a token is minus a hundredth of it. `faults` come first."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.faults: deque[str] = deque()
        self.always = ""
        self.closing = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append((request.path, body))
        self.headers.append(dict(request.headers))
        fault = self.faults.popleft() if self.faults else self.always
        ids = body["prompt"]
        logprobs: list[Any] = [None, *(-token / 100 for token in ids[1:])]
        tokens = [text_of(token) for token in ids]
        match fault:
            case "503" | "429" | "400":
                return web.Response(status=int(fault), text=f"status {fault}", headers={"Retry-After": "0"})
            case "hang":
                await self.closing.wait()
            case "html":
                return web.Response(text="<html>")
            case "no logprobs":
                return web.json_response({"choices": [{"text": "", "logprobs": None}]})
            case "short":
                logprobs, tokens = logprobs[:-1], tokens[:-1]
            case "nan" | "impossible" | "logit" | "huge":
                logprobs[-1] = NO_LOGPROBS[fault]
            case "other tokenizer":
                tokens[-1] = "elephant"
        return web.json_response({"choices": [{"logprobs": {"tokens": tokens, "token_logprobs": logprobs}}]})


@pytest.fixture
def teaches() -> Teaches:
    return Teaches()


@pytest.fixture
def ask(teaches: Teaches) -> Iterator[Callable[..., list[Outcome]]]:
    made: list[Teacher] = []
    with serving(catch_all(teaches.answer, teaches.closing), cancel_abandoned=True) as url:

        def ask(*completions: list[int], **settings: Any) -> list[Outcome]:
            spec = TeacherServer(**{"url": f"{url}/v1/", "model": "big", "retries": 2, **settings})
            made.append(Teacher(spec, field=FIELD, first_pause_seconds=0.0))
            made[-1].knows(text_of)
            samples = [
                ToScore("p", "c", None, {}, prompt_ids=PROMPT, completion_ids=np.array(tokens))
                for tokens in completions
            ]
            return asyncio.run(made[-1].score(samples))

        yield ask
        for teacher in made:
            teacher.close()


def test_each_token_of_the_completion_has_the_teachers_log_probability(ask, teaches: Teaches) -> None:
    first, second = ask([30, 40], [50])
    np.testing.assert_allclose(first.logprobs, [-0.3, -0.4], rtol=1e-6)
    np.testing.assert_allclose(second.logprobs, [-0.5], rtol=1e-6)
    assert first.value == pytest.approx(-0.35) and first.cause is None
    path, body = teaches.requests[0]
    assert path == "/v1/completions"
    assert body | {"prompt": None} == {
        "model": "big",
        "prompt": None,
        "max_tokens": 0,
        "echo": True,
        "logprobs": 0,
        "temperature": 1.0,
    }
    assert sorted(body["prompt"] for _, body in teaches.requests) == [[11, 12, 30, 40], [11, 12, 50]]


@pytest.mark.parametrize("fault", ["503", "429", "hang", "html", "no logprobs", "short", "nan", "impossible", "logit"])
def test_trouble_that_passes_costs_nothing(ask, teaches: Teaches, fault: str) -> None:
    teaches.faults.append(fault)
    [outcome] = ask([30], timeoutSeconds=3.0 if fault == "hang" else 10.0)
    assert outcome.logprobs is not None and len(teaches.requests) == 2


@pytest.mark.parametrize(
    ("fault", "cause", "message", "times"),
    [
        ("503", "server", "answers with status 503: status 503 (3 times)", 3),
        ("400", "server", "answers with status 400: status 400", 1),
        ("no logprobs", "wrong_type", "returned no logprobs.tokens and token_logprobs", 3),
        ("short", "wrong_type", "returned log-probabilities of 2 tokens in place of 3", 3),
        ("impossible", "wrong_type", "returned -9999.0 as a log-probability", 3),
        ("nan", "wrong_type", "returned nan as a log-probability", 3),
        ("logit", "wrong_type", "returned 3.5 as a log-probability", 3),
        ("huge", "wrong_type", "returned 1000000", 3),
        ("other tokenizer", "wrong_type", "reads the token 30 as 'elephant', and the base model as ' t30'", 1),
    ],
)
def test_what_stays_in_trouble_has_no_score(
    ask, teaches: Teaches, fault: str, cause: str, message: str, times: int
) -> None:
    teaches.always = fault
    [outcome] = ask([30])
    assert outcome.cause == cause and message in outcome.message and outcome.logprobs is None
    assert len(teaches.requests) == times
    expected = RewardServerError if cause == "server" else InputError
    with pytest.raises(expected, match=FIELD):
        collect([outcome], FIELD)


def test_a_run_stops_when_too_many_are_left_out(ask, teaches: Teaches) -> None:
    teaches.faults.extend(["400"])
    outcomes = ask([30], [40], [50], concurrency=1)
    assert [outcome.cause for outcome in outcomes] == ["server", None, None]
    require_scored(outcomes, {FIELD: 0.5}, "in step 3")
    with pytest.raises(RewardServerError, match=f"{FIELD}.maxFailedShare: got 1 of 3 completions"):
        require_scored(outcomes, {FIELD: 0.1}, "in step 3")


def test_the_key_is_sent(ask, teaches: Teaches, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "OPENAI_API_KEY").write_text("sk-1")
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(tmp_path))
    ask([30], credentialsSecret="teacher")
    assert teaches.headers[0]["Authorization"] == "Bearer sk-1"


def test_a_dry_run_asks_for_the_last_token_of_each_prompt(teaches: Teaches) -> None:
    rows = [EncodedRow(Row("p", "", {}, n), list(range(11, 13 + n)), []) for n in (1, 2)]
    with serving(catch_all(teaches.answer, teaches.closing)) as url:
        teacher = Teacher(TeacherServer(url=url, model="big", retries=0), field=FIELD)
        teacher.knows(text_of)
        teaches.faults.append("400")
        scored, warning = asyncio.run(try_teacher(teacher, rows))
        assert scored == "teacher  the server scored the last token of 1 of 2 prompts"
        assert warning.startswith("warning: ") and "status 400" in warning
        teaches.always = "other tokenizer"
        with pytest.raises(InputError, match="it needs the same tokenizer"):
            asyncio.run(try_teacher(teacher, rows))
        teacher.close()


def test_a_dry_run_says_that_it_is_hasty_if_a_teacher_takes_longer(teaches: Teaches) -> None:
    """vLLM's first answer on a busy CPU took more than six seconds."""
    teaches.always = "hang"
    with serving(catch_all(teaches.answer, teaches.closing), cancel_abandoned=True) as url:
        teacher = Teacher(TeacherServer(url=url, model="big", retries=0, timeoutSeconds=0.2), field=FIELD)
        teacher.knows(text_of)
        with pytest.raises(RewardServerError, match=r"took more than 0.2 s.*A run waits up to timeoutSeconds"):
            asyncio.run(try_teacher(teacher, [EncodedRow(Row("p", "", {}, 1), PROMPT, [])]))
        teacher.close()


@pytest.mark.parametrize(
    ("ours", "theirs", "different"),
    [
        ("word", "word", False),
        (" word", "word", False),
        ("\n", "", False),
        ("\ufffd", "é", False),
        ("é", "\ufffd", False),
        ("word", "ward", True),
        ("word", "wo", True),
        ("word", None, True),
    ],
)
def test_spaces_and_parts_of_characters_are_no_other_tokenizer(ours: str, theirs: Any, different: bool) -> None:
    assert differ(ours, theirs) is different
