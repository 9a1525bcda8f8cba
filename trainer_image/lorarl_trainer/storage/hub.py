"""Models and adapters of the Hugging Face hub, in the hub's own cache, and why one is not available."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lorarl_api.v1alpha1 import BaseModelSpec
from lorarl_trainer.errors import InputError, StorageError
from lorarl_trainer.storage.meter import Meter, OnBytes, metered
from lorarl_trainer.storage.retries import HASTY, usual_policy

_FIELD = "spec.model.uri"


def fetch_files(
    spec: BaseModelSpec,
    patterns: Sequence[str],
    but: Sequence[str],
    token: str | None,
    on_bytes: OnBytes | None = None,
) -> Path:
    """Download the files that fit these patterns, and none of those to leave out; return their folder.

    `on_bytes` is called with the bytes. To know them all, it costs one more look at each file.

    Raises:
        InputError: the hub has no such model for this token.
        StorageError: the hub could not be reached.
    """
    from huggingface_hub import snapshot_download  # takes most of a second, and only hf:// needs it

    fetch = partial(
        snapshot_download,
        _name(spec),
        revision=spec.revision,
        token=token,
        allow_patterns=list(patterns),
        ignore_patterns=list(but),
        local_files_only=bool(why := why_unreachable()),
    )
    with _explained(spec.uri, spec.revision, why=why):
        missing = _missing_bytes(fetch) if on_bytes else 0
        if not missing:
            return Path(fetch(tqdm_class=_silent_bar()))
        with metered(on_bytes, spec.uri, missing) as meter:
            return Path(fetch(tqdm_class=_silent_bar(meter)))


def _missing_bytes(fetch: Callable[..., Any]) -> int:
    """Return how much `snapshot_download` would fetch; 0 if that cannot be found out, as without a network."""
    from httpx import HTTPError

    try:
        files = fetch(dry_run=True, tqdm_class=_silent_bar())
    except (HTTPError, OSError, ValueError, KeyError):
        return 0  # the download itself says what is wrong, or does without
    return sum(file.file_size for file in files if file.will_download)


def _silent_bar(meter: Meter | None = None) -> type:
    """Return a class for the bars of the hub's client, which draws none and gives the bytes to a meter."""
    from tqdm import tqdm  # type: ignore[import-untyped]  # ships no types

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **{**options, "disable": True})
            self._bytes = options.get("unit") == "B"

        def update(self, n: float | None = 1) -> bool | None:
            """Count bytes. The client has two bars of them: those that arrived, and those that are written."""
            self.n += n or 0
            if meter is not None and self._bytes:
                meter.reach(int(self.n))
            return None

    return Bar


def fetch_file(spec: BaseModelSpec, name: str, token: str | None) -> Path:
    """Download one file; see `fetch_files` for the errors."""
    from huggingface_hub import hf_hub_download

    cached = bool(why := why_unreachable())
    fetch = partial(hf_hub_download, revision=spec.revision, token=token, tqdm_class=_silent_bar())
    with _explained(spec.uri, spec.revision, why=why):
        return Path(fetch(_name(spec), name, local_files_only=cached))


def fetch_adapter(uri: str, names: Sequence[str], token: str | None, field: str) -> Path:
    """Download the files of an adapter that have these names; return their folder.

    Raises:
        InputError: naming `field`, if the hub has no such adapter for this token.
        StorageError: the hub could not be reached.
    """
    from huggingface_hub import snapshot_download

    cached = bool(why := why_unreachable())
    fetch = partial(snapshot_download, token=token, allow_patterns=list(names), tqdm_class=_silent_bar())
    with _explained(uri, None, field, why):
        return Path(fetch(uri.removeprefix("hf://"), local_files_only=cached))


def why_unreachable() -> str:
    """Return why the hub's machine cannot be reached; empty if it can, or if nothing waits for the answer.

    The hub's client repeats its requests for half a minute. That is right for a run, and too long for a dry run, which
    then looks into the hub's cache alone. Behind a proxy, only the client knows the way.
    """
    from huggingface_hub.constants import ENDPOINT

    if usual_policy() is not HASTY or urllib.request.getproxies():
        return ""
    url = urlsplit(ENDPOINT)
    return _why_closed(url.hostname or "", url.port or (80 if url.scheme == "http" else 443))


@cache
def _why_closed(host: str, port: int) -> str:
    """Return why a machine takes no connection; empty if it does. A dry run asks once, however much it looks up."""
    try:
        socket.create_connection((host, port), timeout=HASTY.request_seconds).close()
    except OSError as error:
        return f"{host}, port {port}: {error.strerror or 'no answer'}"
    return ""


@contextmanager
def cache_if_unreachable() -> Iterator[str]:
    """Let the hub's client use its cache alone in the block if `why_unreachable` says why; yield that."""
    from huggingface_hub import constants

    usual, why = constants.HF_HUB_OFFLINE, why_unreachable()
    constants.HF_HUB_OFFLINE = usual or bool(why)
    try:
        yield why
    finally:
        constants.HF_HUB_OFFLINE = usual


def _name(spec: BaseModelSpec) -> str:
    return spec.uri.removeprefix("hf://")


@contextmanager
def _explained(uri: str, revision: str | None, field: str = _FIELD, why: str = "") -> Iterator[None]:
    """Explain why a model or an adapter cannot be fetched. If the hub cannot be reached, the manifest is not at fault.

    `why` says why only the hub's cache was looked into; empty if it was not so.
    """
    what = "a model" if field == _FIELD else "an adapter"
    from httpx import HTTPError
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except RevisionNotFoundError as error:
        raise InputError(
            "spec.model.revision",
            f"{revision}, which {uri} does not have",
            "a branch, tag or commit of the model",
            "Fix spec.model.revision, or remove it to use the default branch.",
        ) from error
    except (GatedRepoError, RepositoryNotFoundError) as error:
        hint = (
            f"Fix {field}. For a gated or private one, accept its terms and put HF_TOKEN into "
            "spec.model.credentialsSecret."
        )
        raise InputError(field, f"{uri}, which this token cannot find", f"{what} on the hub", hint) from error
    except HFValidationError as error:
        raise InputError(field, uri, "hf://ORG/NAME", f"Fix {field}.") from error
    except RemoteEntryNotFoundError as error:
        raise InputError(
            field, f"{uri}, which has no config.json", "a model in Hugging Face format", f"Fix {field}."
        ) from error
    except (HTTPError, OSError, ValueError, KeyError) as error:  # KeyError: a login page answered instead of the hub
        reason = why or (str(error).strip().splitlines() or [""])[0]
        raise StorageError(
            f"{field}: {uri} could not be downloaded ({reason}). Check the network (HF_ENDPOINT, proxies), or "
            "download it and name its folder with file:."
        ) from error
