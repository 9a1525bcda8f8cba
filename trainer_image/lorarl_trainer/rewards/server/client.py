"""Requests to a reward server: several at a time, repeated within limits, each answer remembered."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rewards.server.apis import NoScoreError, OtherTokenizerError

MOST_REMEMBERED = 100_000
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
_WORTH_A_REPEAT = frozenset([408, 409, 425, 429])  # and all from 500 on

type Read = Callable[[Any], Outcome]
"""Returns what an answer's JSON says, or raises NoScoreError."""


class Client:
    """Asks one server. All its methods run in one event loop."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        timeout_seconds: float,
        retries: int,
        concurrency: int,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
        remembered: int = MOST_REMEMBERED,
        hint: Callable[[int, str], str] = lambda status, said: "",
    ) -> None:
        """Make a client.

        `first_pause_seconds`: before the first repeat; each further one waits twice as long. `hint`: returns what to
        add to a message about a status and the text that came with it.
        """

        async def attach(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
            request.headers.update(headers)
            return await send(request)

        self._url, self._hint, self._retries, self._most = url, hint, retries, remembered
        self._limit, self._pause = timeout_seconds, first_pause_seconds
        self._session = aiohttp.ClientSession(
            middlewares=(attach,),  # as headers of the session, they could not stand beside an entry of ~/.netrc
            timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            # A server may end an idle connection as a request arrives. Only a repeat makes good for that.
            connector=aiohttp.TCPConnector(limit=concurrency, force_close=not retries),
            trust_env=True,
        )
        self._turns = asyncio.Semaphore(concurrency)
        self._answers: OrderedDict[bytes, asyncio.Future[Outcome]] = OrderedDict()

    async def score(self, body: Mapping[str, Any], read: Read) -> Outcome:
        """Return what `read` finds in the server's answer, or why there is none.

        One request serves all with the same body.
        """
        data = json.dumps(body).encode()
        key = hashlib.sha256(data).digest()
        if (asked := self._answers.get(key)) is None:
            asked = self._answers[key] = asyncio.ensure_future(self._ask(data, read))
        self._answers.move_to_end(key)
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)
        outcome = await asyncio.shield(asked)
        if outcome.cause is not None and self._answers.get(key) is asked:
            del self._answers[key]  # the next one may have more luck
        return outcome

    async def close(self) -> None:
        await self._session.close()

    async def _ask(self, data: bytes, read: Read) -> Outcome:
        failed = Outcome.failed("server", "was not asked")
        for attempt in range(self._retries + 1):
            async with self._turns:
                outcome, pause = await self._try(data, read)
            if outcome.cause is None or pause is None:
                return outcome
            failed = outcome
            if attempt < self._retries:
                await asyncio.sleep(min(LONGEST_PAUSE_SECONDS, max(pause, self._pause * 2**attempt)))
        tried = f" ({self._retries + 1} times)" if self._retries else ""
        return Outcome.failed(failed.cause or "server", failed.message + tried)

    async def _try(self, data: bytes, read: Read) -> tuple[Outcome, float | None]:
        """Ask once. Returns the outcome, and the least seconds before a repeat; None if none is worth it."""
        try:
            async with self._session.post(
                self._url, data=data, headers={"Content-Type": "application/json"}, allow_redirects=False
            ) as answer:
                text = await answer.text(errors="replace")
                if answer.status != 200:
                    worth = answer.status >= 500 or answer.status in _WORTH_A_REPEAT
                    said = " ".join(text.split())[:200]
                    message = f"{self._url} answers with status {answer.status}: {said}"
                    outcome = Outcome.failed("server", message + self._hint(answer.status, said))
                    return outcome, _asked_pause(answer.headers.get("Retry-After")) if worth else None
            return read(_parsed(text)), None
        except OtherTokenizerError as error:
            return Outcome.failed("wrong_type", f"{self._url} {error}"), None
        except NoScoreError as error:
            return Outcome.failed("wrong_type", f"{self._url} returned {error}"), 0.0
        except TimeoutError:
            return Outcome.failed("server", f"{self._url} took more than {self._limit:g} s"), 0.0
        except aiohttp.InvalidURL as error:
            return Outcome.failed("server", f"{self._url} is not a valid address ({error.__cause__ or error})"), None
        except (aiohttp.ClientError, OSError) as error:
            return Outcome.failed("server", f"{self._url} cannot be reached ({type(error).__name__}: {error})"), 0.0
        except ValueError as error:  # a host name with an empty part
            return Outcome.failed("server", f"{self._url} is not a valid address ({error})"), None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise NoScoreError(f"no JSON: {text[:80]!r}") from None


def _asked_pause(retry_after: str | None) -> float:
    """Return the pause that a server asks for, in seconds; 0 if it names none or a date."""
    return float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
