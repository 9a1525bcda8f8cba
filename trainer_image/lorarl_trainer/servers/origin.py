"""Who started the servers of a run: where they are, what they want, and what a person does about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.servers.client import START_OPTIONS
from lorarl_trainer.servers.key import ServerKey
from lorarl_trainer.servers.reach import OverHttp, Reach

SERVERS = "spec.rollout.servers"
_AT_ONCE = 256
"""As many as vLLM runs by default."""


@dataclass(frozen=True)
class Origin:
    """Where servers come from.

    Attributes:
        field: of the manifest, by which messages name them.
        urls: their addresses, without /v1, or their names.
        key: what all of them want; None if they want none.
        at_once: requests that each gets at a time. The others wait for whichever has room.
        if_wrong: what to do about one that computes something else than the trainer.
        if_gone: what to do if none is left.
        reach: the way to each, given its URL and a session that attaches the key.
        takes_files: whether they see no folder of the workers, and adapters are sent to them.
        are_lost: returns whether the machines of all are gone, so that the job is not at fault.
    """

    field: str
    urls: tuple[str, ...]
    key: ServerKey | None
    at_once: int
    if_wrong: str
    if_gone: str
    reach: Callable[[str, aiohttp.ClientSession], Reach] = OverHttp
    takes_files: bool = False
    are_lost: Callable[[], bool] = lambda: False


def of_manifest(spec: LoRARLJobSpec) -> Origin:
    """Return the servers that somebody else started, which the manifest names.

    Raises:
        InputError: the Secret with their key lacks it.
    """
    secret = spec.rollout.credentials_secret
    return Origin(
        field=SERVERS,
        urls=tuple(url.rstrip("/").removesuffix("/v1") for url in spec.servers),
        key=ServerKey.of_secret(secret) if secret else None,
        at_once=_AT_ONCE,
        if_wrong="Start the server with the base model of spec.model.uri, "
        f"{START_OPTIONS}, and --logprobs-mode processed_logprobs",
        if_gone="Start the servers, and run the same command again: the next start resumes.",
    )
