"""Who reaches a server by its address."""

from __future__ import annotations

from ipaddress import ip_address

from lorarl_trainer.errors import InputError


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
