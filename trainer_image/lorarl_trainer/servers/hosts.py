"""Who reaches a server by its address, and ports for servers that start later."""

from __future__ import annotations

import contextlib
import random
import socket
from ipaddress import ip_address

from lorarl_trainer.errors import InputError

LOOPBACK = "127.0.0.1"


def port_for_later(host: str = "") -> int:
    """Return a port that no other process gets by chance before a process has imported torch and listens on it.

    It is above the ports of Ray's workers (10002 to 19999) and below the ephemeral ports (from 32768). `host`: where it
    is to be free; by default everywhere.
    """
    for port in random.SystemRandom().sample(range(20_000, 30_000), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((host, port))
            return port
    raise OSError("no port between 20000 and 29999 is free")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches what listens there."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_key(host: str, key: str | None, variable: str, hint: str) -> None:
    """Refuse to listen where other machines can connect without a key, which comes from an environment variable.

    Raises:
        InputError: it names the option and the variable, and ends with `hint`.
    """
    if not (key or is_loopback(host)):
        raise InputError("--host", f"{host} without {variable}", "a key where other machines can connect", hint)
