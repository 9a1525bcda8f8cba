"""How requests, and the files of an adapter, get to a server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from typing import Any, Protocol

import aiohttp

from lorarl_trainer.servers.faults import UnreachableError
from lorarl_trainer.servers.key import ServerKey


class Reach(Protocol):
    """The way to one server."""

    @property
    def url(self) -> str:
        """By which people and requests know the server."""
        ...

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> tuple[int, str]:
        """Return status and text of the answer to a request, within some seconds.

        Raises:
            UnreachableError: there is none.
        """
        ...

    async def deliver(self, folder: Path, files: Any, kept: Collection[str]) -> PurePath:
        """Bring an adapter's files to where the server reads them; return their folder there.

        Args:
            folder: where the workers wrote them.
            files: Ray's reference to the `AdapterFiles`; None where the server sees the folder itself.
            kept: names of the folders of other versions that stay.

        Raises:
            ServerError: they do not get there.
        """
        ...


class OverHttp:
    """A server that listens at its address, and sees the folders of the workers."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        """Take its URL, with or without /v1. The session is the caller's to close, and attaches the key."""
        self._url, self._session = url.rstrip("/").removesuffix("/v1"), session

    @property
    def url(self) -> str:
        return self._url

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> tuple[int, str]:
        try:
            async with self._session.request(
                method,
                self._url + path,
                json=body,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as answer:
                return answer.status, await answer.text(errors="replace")
        except TimeoutError:
            raise UnreachableError(f"{self._url}{path} took more than {seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnreachableError(f"{self._url} cannot be reached ({type(error).__name__}: {error})") from None

    async def deliver(self, folder: Path, files: Any, kept: Collection[str]) -> PurePath:
        return folder


def open_session(key: ServerKey | None, *, by_proxy: bool = True) -> aiohttp.ClientSession:
    """Open a session that sends a key with each request.

    `by_proxy`: whether the variables of proxies count.
    """
    # A server runs its requests side by side, so nothing limits the connections here. Each request has its own:
    # vLLM ends those that were idle for 5 s, and a request that is sent on one just then gets no answer.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    middlewares = (key.attach,) if key else ()
    return aiohttp.ClientSession(connector=connector, trust_env=by_proxy, middlewares=middlewares)
