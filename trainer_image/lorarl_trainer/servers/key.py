"""The key that servers want: from a Secret that the manifest names, or made for a run."""

from __future__ import annotations

import contextlib
from typing import Self

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, hdrs

from lorarl_api.redaction import HIDDEN
from lorarl_trainer.errors import InputError
from lorarl_trainer.storage.secrets import API_KEY, read_api_key

FIELD = "spec.rollout.credentialsSecret"
WANTED = f"It wants a key: write it into a Secret under {API_KEY}, and name the Secret in {FIELD}."
REFUSED = (
    f"It refuses the key of {FIELD}. Give the Secret's {API_KEY} a key that the server, or what is before it, takes."
)


class ServerKey:
    """One key for all servers. It reaches them in the header of each request, and nothing else."""

    def __init__(self, value: str, secret: str | None = None) -> None:
        """Take the key, and the Secret that it is from, if any."""
        self.value, self._secret = value, secret
        self._sent = {value}

    @classmethod
    def of_secret(cls, secret: str) -> Self:
        """Read the key.

        Raises:
            InputError: the Secret has none.
        """
        return cls(read_api_key(secret, FIELD), secret)

    async def attach(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        """Send a request with the key: aiohttp's middleware, so that no entry of ~/.netrc takes its place."""
        request.headers[hdrs.AUTHORIZATION] = f"Bearer {self.value}"
        return await send(request)

    def renew(self, refused: str) -> bool:
        """Read the Secret again, which the kubelet replaces within about a minute.

        Returns whether the key is another one now than a server has refused.
        """
        if self._secret is not None:
            with contextlib.suppress(InputError):  # what the server said tells more
                self.value = read_api_key(self._secret, FIELD)
        self._sent.add(self.value)
        return self.value != refused

    def hide(self, text: str) -> str:
        """Return a text without the key, or one before: a server may repeat what it refuses."""
        for value in self._sent:
            text = text.replace(value, HIDDEN)
        return text
