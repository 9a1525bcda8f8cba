"""Environments at servers of OpenEnv: a session is an episode, and the model reads what it did wrong."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import subprocess
import sys
import venv
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.install.install import installer
from lorarl_trainer.rewards.environment.environment import Answer, Environment, EpisodeFailedError
from lorarl_trainer.rewards.environment.worlds.open_env import ActionForm
from lorarl_trainer.rewards.process import CodeFolders
from support.cluster.processes import free_ports
from support.open_env import REQUIREMENT, VARIABLE, needs_openenv, open_env
from support.serving import serving

pytestmark = pytest.mark.slow
NO_ROW: dict[str, Any] = {"prompt": "a game", "seed": 4}


async def play(
    url: str, row: dict[str, Any], *texts: str, seed: int = 0, limit: float = 60.0
) -> tuple[Any, list[Answer]]:
    """Play one episode, and return what opened it and the answers."""
    environment = Environment(EnvironmentSpec(open_env=url, timeout_seconds=limit), CodeFolders(()))
    try:
        async with environment.episode(seed) as episode:
            return await episode.reset(row), [await episode.step(text) for text in texts]
    finally:
        environment.close()


def played(url: str, row: dict[str, Any], *texts: str, **settings: Any) -> tuple[Any, list[Answer]]:
    return asyncio.run(play(url, row, *texts, **settings))


@pytest.fixture(scope="module")
def url_of() -> Iterator[Callable[[str], str]]:
    """Return the URL of a server with an environment, which starts when it is first asked for."""
    with contextlib.ExitStack() as servers:
        yield functools.cache(lambda kind: servers.enter_context(open_env(kind)))


@needs_openenv
def test_an_action_is_the_last_json_of_a_turn_and_a_wrong_one_is_answered(
    url_of: Callable[[str], str],
) -> None:
    opening, answers = played(
        url_of("number"),
        NO_ROW | {"most": 20, "instructions": "Win."},
        "no idea",
        '{"guess": "many"}',
        '<think>{"guess": 4}?</think>\n```json\n{"guess": 3, "why": "it is { odd }"}\n```',
        '{"guess": 3, "because": 1}',
        '{"guess": 4}',
    )
    first, second, third = opening.splitlines()
    assert (first, second) == ("Win.", "Guess a number from 0 to 20.")
    schema = json.loads(third.removeprefix("Answer with a JSON object of this schema: "))
    assert list(schema["properties"]) == ["guess", "why"] and schema["required"] == ["guess"]
    assert [answer.text for answer in answers] == [
        "This was no valid action: there is no JSON object in it.",
        "This was no valid action: guess: Input should be a valid integer, unable to parse string as an integer.",
        "It is higher.",
        "This was no valid action: because: Extra inputs are not permitted.",
        "It is lower.",
    ]
    assert [answer.reward for answer in answers] == [None, None, None, None, 1.0]
    assert [answer.done for answer in answers] == [False] * 4 + [True]
    assert [answer.components["invalid_moves"] for answer in answers] == [1, 2, 2, 3, 3]
    assert answers[-1].components == {"turns": 2.0, "invalid_moves": 3.0}, "one of its name and number alone"


@needs_openenv
def test_the_seed_of_a_row_or_else_of_the_episode_is_that_of_the_server(url_of: Callable[[str], str]) -> None:
    url, guesses = url_of("number"), [json.dumps({"guess": guess}) for guess in range(10)]
    assert played(url, {"prompt": "", "seed": 17}, '{"guess": 7}')[1][0].done
    ends = [[answer.done for answer in played(url, {"prompt": ""}, *guesses, seed=seed)[1]] for seed in (5, 5, 6)]
    assert ends[0] == ends[1] != ends[2]
    assert all(sum(end) == 1 for end in ends)


@needs_openenv
def test_one_required_text_is_the_turn_and_several_things_seen_are_json(
    url_of: Callable[[str], str],
) -> None:
    opening, answers = played(url_of("words"), NO_ROW, "say {hello}", "bye")
    assert opening == '{"stdout": "ready", "exit_code": 0}'
    assert answers == [
        Answer('{"stdout": "say False", "exit_code": 0}', False, 0.25, {"invalid_moves": 0.0}),
        Answer('{"stdout": "bye False", "exit_code": 0}', True, 0.25, {"invalid_moves": 0.0}),
    ]


@needs_openenv
def test_an_action_that_is_one_of_some_words_is_asked_for() -> None:
    with open_env("stairs") as url:
        opening, answers = played(url, NO_ROW, "left", " up\n")
    assert opening == "Up or down?\nAnswer with one of up, down."
    assert answers == [
        Answer(
            "This was no valid action: move: Input should be 'up' or 'down'. Answer with one of up, down.",
            False,
            None,
            {"invalid_moves": 1.0},
        ),
        Answer("", True, 1.0, {"invalid_moves": 1.0}),
    ]


@needs_openenv
@pytest.mark.parametrize(
    ("kind", "row", "text", "cause", "said"),
    [
        ("number", {}, '{"guess": 100}', "exception", r"^step at http.*: 'broken' \(EXECUTION_ERROR\)$"),
        ("number", {}, '{"guess": 101}', "exception", r"the environment failed \(text: Input should be a valid string"),
        ("number", {}, '{"guess": -13}', "server", r"^step at http.*: Unable to serialize .* \(SESSION_ERROR\)$"),
        ("words", {"text": 5}, "", "exception", r"^reset at http.*VALIDATION_ERROR"),
        ("words", {"done": True}, "", "wrong_type", "^reset at http.* says done: no turn of the model could come$"),
        ("words", {"text": {1}}, "", "wrong_type", "^the row cannot be sent to http.* as JSON: .*set"),
        ("words", {}, "long 10000000", "too_long", "^step returned a text of 10,000,03[0-9] characters"),
        ("words", {}, "long 40000000", "too_long", "answered with more than 33,554,432 bytes$"),
    ],
)
def test_what_the_environment_does_wrong_fails_its_episode_by_cause(
    kind: str, row: dict[str, Any], text: str, cause: str, said: str, url_of: Callable[[str], str]
) -> None:
    with pytest.raises(EpisodeFailedError, match=said) as failed:
        played(url_of(kind), NO_ROW | row, text)
    assert failed.value.cause == cause


@needs_openenv
def test_a_step_that_takes_too_long_ends_its_session_and_no_other(tmp_path: Path) -> None:
    gone = tmp_path / "gone"

    async def both(url: str) -> Any:
        slow = asyncio.ensure_future(play(url, NO_ROW, f"wait {gone}", limit=2.0))
        _, answers = await play(url, NO_ROW, "a", "bye")
        with pytest.raises(
            EpisodeFailedError, match=r"^step took more than 2 s, the environment's timeoutSeconds"
        ) as no:
            await slow
        assert no.value.cause == "timeout"
        gone.touch()
        return answers

    with open_env("words", sessions=2) as url:
        assert asyncio.run(both(url))[-1].done
        assert asyncio.run(play(url, NO_ROW, "bye"))[1][-1].done, "its session is free again"


@needs_openenv
def test_an_episode_waits_for_a_session_and_says_how_many_there_are() -> None:
    environment: Environment

    async def in_turns(url: str) -> None:
        async with environment.episode(0) as first, environment.episode(0) as second:
            await first.reset(NO_ROW)
            with pytest.raises(
                EpisodeFailedError, match=r"has no session left, since all of its 1 are taken"
            ) as failed:
                await second.reset(NO_ROW)
            assert failed.value.cause == "server"
            assert "Set spec.environment.concurrency to 1 at most" in failed.value.message
            assert "times in 2 s, the environment's timeoutSeconds" in failed.value.message
        async with environment.episode(0) as third:  # at once, while the server still ends the first session
            await third.reset(NO_ROW)
            assert (await third.step("bye")).done

    with open_env("words", sessions=1) as url:
        environment = Environment(EnvironmentSpec(open_env=url, timeout_seconds=2.0), CodeFolders(()))
        try:
            asyncio.run(in_turns(url))
        finally:
            environment.close()


@needs_openenv
def test_a_restart_fails_the_episodes_there_and_opens_those_that_wait() -> None:
    port = free_ports(1)[0]

    async def over_a_restart(environment: Environment) -> None:
        async with environment.episode(0) as episode:
            with open_env("words", port=port):
                await environment.ready()
                await episode.reset(NO_ROW)
                assert not (await episode.step("a")).done
            with pytest.raises(EpisodeFailedError, match="ended the session in step") as failed:
                await episode.step("b")
            assert failed.value.cause == "server"
        async with environment.episode(0) as episode:
            opening = asyncio.ensure_future(episode.reset(NO_ROW))
            await asyncio.sleep(0)
            with open_env("words", port=port):
                assert await opening == '{"stdout": "ready", "exit_code": 0}'

    with open_env("words", port=port) as url:
        environment = Environment(EnvironmentSpec(open_env=url, timeout_seconds=60.0), CodeFolders(()))
        asyncio.run(environment.ready())
    try:
        asyncio.run(over_a_restart(environment))
    finally:
        environment.close()


SCHEMA = {"action": {"properties": {"metadata": {"type": "object"}, "say": {"type": "string"}}, "required": ["say"]}}
OBSERVED = json.dumps({"type": "observation", "data": {"observation": {"text": "go"}, "reward": None, "done": False}})


def served(schema: Any, session: Callable[[web.WebSocketResponse], Awaitable[None]] | None = None) -> web.Application:
    """A server that says something else than OpenEnv does: as the schema, or in its sessions."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=schema if isinstance(schema, str) else json.dumps(schema))

    async def begin(request: web.Request) -> web.StreamResponse:
        opened = web.WebSocketResponse(autoping=False)
        await opened.prepare(request)
        assert session is not None
        await session(opened)
        return opened

    app = web.Application()
    app.router.add_get("/base/schema", answer)
    app.router.add_get("/base/ws", begin)
    return app


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("<html>", "has no JSON with the schema of actions"),
        ("[]", "has no JSON with the schema of actions"),
        ({"action": {"type": "object"}}, "has no fields of actions"),
        (None, "has the status 404"),
    ],
)
def test_what_is_no_server_of_openenv_is_refused_with_what_it_answered(answer: Any, said: str) -> None:
    with serving(served(answer)) as root, pytest.raises(InputError) as refused:
        played(root if answer is None else f"{root}/base", NO_ROW)
    assert str(refused.value).startswith(f"spec.environment.openEnv: got {root}")
    assert f"which is no server of OpenEnv (GET {root}" in str(refused.value) and said in str(refused.value)


def test_a_server_that_is_down_is_refused_after_some_tries() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(InputError, match=r"got http.*it cannot be reached: .*refused.* Start the server, or correct"):
        played(url, NO_ROW)


@pytest.mark.parametrize(
    ("answers", "cause", "said"),
    [
        ([OBSERVED, "{"], "wrong_type", "^step at http.*/base got no observation of OpenEnv: '{'$"),
        ([OBSERVED, "[1]"], "wrong_type", "got no observation"),
        ([OBSERVED, '{"type": "observation", "data": {"observation": "x"}}'], "wrong_type", "got no observation"),
        ([OBSERVED, '{"type": "mcp", "data": {}}'], "wrong_type", "got no observation"),
        ([OBSERVED, OBSERVED.replace("null", '"much"')], "wrong_type", "step returned str 'much' as 'reward'"),
        ([OBSERVED, OBSERVED.replace("null", "1e999")], "non_finite", "step returned inf as 'reward'"),
        ([OBSERVED], "server", "ended the session in step"),
        ([], "server", r"ended the session in reset: .* \(\d times in 0\.5 s, the environment's timeoutSeconds\)$"),
    ],
)
def test_answers_that_openenv_never_gives_fail_the_episode(answers: list[str], cause: str, said: str) -> None:
    async def session(opened: web.WebSocketResponse) -> None:
        for answer in answers:
            await opened.receive()
            await opened.send_str(answer)

    with serving(served(SCHEMA, session)) as root, pytest.raises(EpisodeFailedError, match=said) as failed:
        played(f"{root}/base", NO_ROW, "go", limit=60.0 if answers else 0.5)
    assert failed.value.cause == cause


def test_a_server_learns_that_a_session_lives_while_the_model_writes() -> None:
    alive = asyncio.Event()
    seen: list[WSMsgType] = []

    async def session(opened: web.WebSocketResponse) -> None:
        await opened.receive()
        await opened.send_str(OBSERVED)
        await opened.ping()
        seen.append((await opened.receive()).type)
        alive.set()
        seen.append((await opened.receive()).type)
        await opened.send_str(OBSERVED.replace("false", "true"))

    async def write_after_the_question(url: str) -> bool:
        environment = Environment(EnvironmentSpec(open_env=url, timeout_seconds=60.0), CodeFolders(()))
        try:
            async with environment.episode(0) as episode:
                await episode.reset(NO_ROW)
                async with asyncio.timeout(30.0):
                    while not alive.is_set():  # of another thread
                        await asyncio.sleep(0.01)
                return (await episode.step("go")).done
        finally:
            environment.close()

    with serving(served(SCHEMA, session)) as root:
        assert asyncio.run(write_after_the_question(f"{root}/base"))
    assert seen == [WSMsgType.PONG, WSMsgType.TEXT]


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


@pytest.mark.parametrize(
    ("fields", "required", "turn", "action"),
    [
        ({"say": TEXT}, ["say"], " a ", {"say": " a "}),
        ({"say": TEXT, "loud": NUMBER}, ["say"], "a", {"say": "a"}),
        ({"say": TEXT}, [], "a", None),
        ({"say": TEXT, "to": TEXT}, ["say", "to"], "a", None),
        ({"tool_name": TEXT, "arguments": {"type": "object"}}, ["tool_name"], "a", None),
        ({"tool_name": TEXT, "arguments": {"anyOf": [{"type": "array"}]}}, ["tool_name"], "a", None),
        ({"n": NUMBER}, ["n"], '{"n": 1} then {"n": 2}, {', {"n": 2}),
        ({"n": NUMBER}, ["n"], '{"n": {"m": 1}}', {"n": {"m": 1}}),
        ({"n": NUMBER}, ["n"], '{"a": ' * 5000, None),
        ({}, [], "{}", {}),
    ],
)
def test_a_turn_becomes_an_action(fields: Any, required: list[str], turn: str, action: Any) -> None:
    metadata = {"metadata": {"type": "object"}}
    assert ActionForm({"properties": fields | metadata, "required": required}).action(turn) == action


@pytest.mark.long
def test_all_of_this_holds_for_the_real_servers(tmp_path: Path) -> None:
    """Without a skip: openenv comes from the index, into an environment of this test."""
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env/bin/python"
    command = [str(python) if part == sys.executable else part for part in installer()]
    subprocess.run([*command, REQUIREMENT], check=True)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not long", __file__],
        env={**os.environ, VARIABLE: str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0 and "skipped" not in ran.stdout, ran.stdout
