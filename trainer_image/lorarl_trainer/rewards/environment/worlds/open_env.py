"""Environments that servers of OpenEnv have. Each is a class of this module, by the URL of its server.

This speaks the protocol of openenv 0.10.0: GET /schema, and at /ws a session for each episode, with messages of JSON.
openenv itself cannot be installed beside vLLM, which needs another mcp. Its client also connects again when a session
is lost, without a word: the next step would reach another session, whose episode never began.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from lorarl_trainer.rewards.environment.worlds import seeded
from lorarl_trainer.rewards.worker import MOST_COMPONENTS, MOST_REWARD, NAME, FailedError, RefusedError

_PAUSES = (0.0, 0.5, 1.0, 2.0)
"""Seconds before each question for the schema: server and job may start together."""
_SECONDS = 10.0
"""Time limit of that question."""
_MOST_BYTES = 32 << 20
"""Of a message. A text of a million characters, which is the most that a model gets, has 12 million at most."""
_OF_OPENENV = ("metadata", "reward", "done")
"""Fields of every action or observation, which say nothing of this one."""
_REFUSED, _RAISED, _FULL = "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED"


def __getattr__(url: str) -> type[_Remote]:
    """Return the class that plays at a server.

    Raises:
        RefusedError: no server of OpenEnv answers there.
    """
    if url.startswith("__"):
        raise AttributeError(url)
    if (host := urlsplit(url).hostname) in ("localhost", "127.0.0.1", "::1"):
        for name in ("no_proxy", "NO_PROXY"):  # a proxy of this machine's leads elsewhere
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), host]))
    return type(url, (_Remote,), {"url": url.rstrip("/"), "form": ActionForm(_action_schema(url.rstrip("/")))})


def _action_schema(url: str) -> Mapping[str, Any]:
    """Ask a server for the JSON schema of its actions."""
    said = ""
    for pause in _PAUSES:
        time.sleep(pause)
        try:
            with urllib.request.urlopen(f"{url}/schema", timeout=_SECONDS) as answer:
                schema: Any = json.loads(answer.read(_MOST_BYTES))["action"]
        except urllib.error.HTTPError as error:
            said = f"GET {url}/schema has the status {error.code}"
            if error.code < 500:
                break
        except (OSError, http.client.HTTPException) as error:
            said = f"it cannot be reached: {getattr(error, 'reason', error)}"
        except (ValueError, KeyError, TypeError):
            said = f"GET {url}/schema has no JSON with the schema of actions"
            break
        else:
            if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
                return schema
            said = f"GET {url}/schema has no fields of actions"
            break
    hint = "Start the server, or correct the URL: GET URL/schema must answer. In a cluster, it is asked from the pod."
    raise RefusedError(f"{url}, which is no server of OpenEnv ({said})", hint)


class ActionForm:
    """How a turn of the model becomes an action: as its one text, or as the last JSON object in it.

    Attributes:
        schema: JSON schema of actions, without what every action has.
        text: the field that is the turn; None if turns have JSON.
        choices: the texts that this field may be; empty if any.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Decide by a JSON schema: the only required field is a text, and no other is a list or an object."""
        fields = {key: value for key, value in schema["properties"].items() if key not in _OF_OPENENV}
        required = [key for key in schema.get("required", ()) if key in fields]
        self.schema = {"properties": fields, "required": required}
        self.schema |= {"$defs": schema["$defs"]} if "$defs" in schema else {}
        self.text, self.choices = None, list[str]()
        resolved = {key: _resolved(value, schema) for key, value in fields.items()}
        if len(required) == 1 and resolved[required[0]].get("type") == "string":
            others = [json.dumps(value) for key, value in resolved.items() if key != required[0]]
            if not any(f'"type": "{nested}"' in other for other in others for nested in ("object", "array")):
                self.text, self.choices = required[0], resolved[required[0]].get("enum", [])

    @property
    def request(self) -> str:
        """What tells the model how to act; empty if any text is an action."""
        if self.text is None:
            return f"Answer with a JSON object of this schema: {json.dumps(self.schema, ensure_ascii=False)}"
        return f"Answer with one of {', '.join(self.choices)}." if self.choices else ""

    def action(self, turn: str) -> dict[str, Any] | None:
        """Return the action of a turn; None if it has none."""
        if self.text is not None:
            return {self.text: turn.strip() if self.choices else turn}
        found, at, decoder = None, turn.find("{"), json.JSONDecoder()
        while at >= 0:
            try:
                found, end = decoder.raw_decode(turn, at)
            except (ValueError, RecursionError):
                end = at + 1
            at = turn.find("{", end)
        return found


def _resolved(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a field, which may be a reference to a definition."""
    definition: Mapping[str, Any] = schema.get("$defs", {}).get(field.get("$ref", "").rpartition("/")[2], field)
    return definition


class _InvalidError(Exception):
    """A server found something invalid. The argument is the list of Pydantic's errors."""


class _Remote:
    """Plays at one server, in one session. Component: invalid_moves, turns that were no action."""

    url: ClassVar[str]
    form: ClassVar[ActionForm]

    def __init__(self) -> None:
        self._seed: int | None = None
        self._open = contextlib.ExitStack()  # until the process ends, and the session with it
        self._session: ClientConnection | None = None
        self._invalid = 0

    def reset(self, row: Mapping[str, Any]) -> str:
        """Begin an episode. It may be called again after a failure of the server: nothing has happened there then."""
        if self._seed is None:
            self._seed = seeded(row)
        self._open.close()
        address = re.sub("^http", "ws", self.url) + "/ws"
        with self._named("reset"):
            # Its own pings would end a session whose server only computes. Those of the server are always answered.
            opened = connect(address, max_size=_MOST_BYTES, open_timeout=_SECONDS, close_timeout=0, ping_interval=None)
            self._session = self._open.enter_context(opened)
        answer = self._asked("reset", {**row, "seed": self._seed})
        if answer.get("done"):
            raise FailedError("wrong_type", f"reset at {self.url} says done: no turn of the model could come")
        parts = [row.get("instructions"), _words(answer), self.form.request]
        return "\n".join(part for part in parts if isinstance(part, str) and part)

    def step(self, text: str) -> dict[str, Any]:
        """Act, unless the turn is no action, which the model reads."""
        if (action := self.form.action(text)) is None:
            return self._not_understood("there is no JSON object in it")
        try:
            answer = self._asked("step", action)
        except _InvalidError as error:
            (errors,) = error.args
            if not _are_about(errors, action, self.form):
                said = f"step at {self.url}: the environment failed ({_described(errors)})"
                raise FailedError("exception", said) from error
            return self._not_understood(_described(errors))
        reward, done = answer.get("reward"), answer.get("done", False)
        numbers = _numbers(answer.get("metadata"))
        return {**numbers, "text": _words(answer), "reward": reward, "done": done, "invalid_moves": self._invalid}

    def _not_understood(self, why: str) -> dict[str, Any]:
        self._invalid += 1
        again = f" {self.form.request}" if self.form.choices else ""
        return {"text": f"This was no valid action: {why}.{again}", "invalid_moves": self._invalid}

    def _asked(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the server observes.

        Raises:
            _InvalidError: it does not take this action, or its environment makes a wrong observation.
            FailedError: it did not answer so.
        """
        assert self._session is not None, "reset comes first"
        try:
            message = json.dumps({"type": kind, "data": data})
        except (TypeError, ValueError) as error:
            raise FailedError("wrong_type", f"the row cannot be sent to {self.url} as JSON: {error}") from error
        with self._named(kind):
            with contextlib.suppress(ConnectionClosed):  # a session that is refused says why before it ends
                self._session.send(message)
            raw = self._session.recv()
        try:
            answer = json.loads(raw)
            said: dict[str, Any] = answer["data"]
            if answer["type"] == "observation":
                return {**said, "observation": dict(said["observation"])}
            code, told = said["code"], str(said["message"])[:500]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            got = f"{kind} at {self.url} got no observation of OpenEnv: {raw[:80]!r}"
            raise FailedError("wrong_type", got) from error
        if code == _REFUSED and kind == "step" and isinstance(errors := said.get("errors"), list):
            raise _InvalidError(errors)
        raise self._error(kind, code, told, said)

    def _error(self, kind: str, code: Any, told: str, said: Mapping[str, Any]) -> FailedError:
        """Return an error that the server says, by its code."""
        if code == _FULL:
            most = said.get("max_sessions")
            advice = f"Set spec.environment.concurrency to {most} at most, or raise max_concurrent_envs there"
            return FailedError("server", f"{self.url} has no session left, since all of its {most} are taken. {advice}")
        cause = "exception" if code in (_RAISED, _REFUSED) else "server"
        return FailedError(cause, f"{kind} at {self.url}: {told} ({code})")

    @contextlib.contextmanager
    def _named(self, kind: str) -> Iterator[None]:
        """Raise what happens to a connection as a failure of the server's."""
        try:
            yield
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == 1009:
                said = f"{kind} at {self.url} answered with more than {_MOST_BYTES:,} bytes"
                raise FailedError("too_long", said) from error
            raise FailedError("server", f"{self.url} ended the session in {kind}: {error}") from error
        except (WebSocketException, OSError) as error:
            said = f"{type(error).__name__}: {error}"
            raise FailedError("server", f"no session at {self.url}: {said}") from error


def _words(answer: Mapping[str, Any]) -> str:
    """Return an observation in words: its one text, or JSON of all of it that is not null."""
    said = {key: value for key, value in answer["observation"].items() if key not in _OF_OPENENV and value is not None}
    match list(said.values()):
        case []:
            return ""
        case [str(text)]:
            return text
    return json.dumps(said, ensure_ascii=False)


def _numbers(metadata: Any) -> dict[str, float]:
    """Return the numbers of an observation's metadata that can be components."""
    given = metadata.items() if isinstance(metadata, dict) else ()
    found = {
        key: float(value)
        for key, value in given
        if isinstance(value, int | float) and NAME.fullmatch(key) and abs(value) <= MOST_REWARD
    }
    return dict(list(found.items())[: MOST_COMPONENTS - 1])


def _are_about(errors: list[Any], action: Mapping[str, Any], form: ActionForm) -> bool:
    """Whether an action is refused. An environment that makes a wrong observation is answered in the same way."""
    own = {*action, *form.schema["properties"]}
    places = [error.get("loc") for error in errors if isinstance(error, dict)]
    return all(not place or place[0] in own for place in places)


def _described(errors: list[Any]) -> str:
    """Return Pydantic's errors in words: the first three."""
    listed = [
        f"{'.'.join(map(str, error.get('loc') or ())) or 'the action'}: {error.get('msg')}"
        for error in errors[:3]
        if isinstance(error, dict)
    ]
    return "; ".join(listed)[:500] or "it is refused"
