"""What a server did not do."""

from __future__ import annotations


class ServerError(Exception):
    """A server did not do what it was asked. The message names the server, what it said, and a fix."""


class UnreachableError(ServerError):
    """It did not answer, or not in time: it is down, it starts again, or it is too slow."""


class UnknownAdapterError(ServerError):
    """It has no adapter of this name. It had one if it answered before: it was started again."""


class RefusedKeyError(ServerError):
    """It refuses the key, or wants one and got none."""
