"""How a request is refused."""

from __future__ import annotations

GONE = 410
"""HTTP status: what was asked for was there once, or with another start of the service. A client asks no more."""


class RefusedError(Exception):
    """A request that this service does not take, as the client sees it."""

    def __init__(self, message: str, status: int = 400) -> None:
        """`status` is HTTP's. Clients repeat a request after 408, 409, 429 and from 500 on."""
        self.status = status
        super().__init__(message)
