"""Starts the dashboard: its places, its threads and its server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from lorarl_api.v1alpha1.stores import WRITABLE
from lorarl_trainer.dashboard.files import Copies
from lorarl_trainer.dashboard.place import Place
from lorarl_trainer.dashboard.site import Site
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress.web import HOST, open_server
from lorarl_trainer.servers.hosts import require_key
from lorarl_trainer.storage import LocalStore, RetryPolicy, open_store
from lorarl_trainer.storage.downloads import cache_dir
from lorarl_trainer.threads import begin

KEY = "LORARL_DASHBOARD_KEY"
"""Environment variable: what a browser sends as the password."""
FIRST_PORT = 8400
DEFAULT = "out"
RETRIES = RetryPolicy(read_deadline_seconds=6.0, request_seconds=5.0, longest_wait_seconds=1.0)
"""A reader waits for the answer, and a look that failed is followed by the next one."""


@dataclass(frozen=True)
class Address:
    """Where to listen, and what requests must carry; None for nothing."""

    host: str = HOST
    port: int | None = None
    key: str | None = None

    def require_key(self) -> None:
        """Refuse to be reached from other machines without a key.

        Raises:
            InputError: it names the option and the variable.
        """
        hint = f"Set {KEY} to a long random text. A browser asks for it as the password, with any user name."
        require_key(self.host, self.key, KEY, hint)


def open_places(names: Sequence[str], cache: Path) -> list[Place]:
    """Return the places that a user named, once each.

    Raises:
        InputError: one is no folder and no URI, or its credentials cannot be used.
    """
    return [_open_place(name, cache) for name in dict.fromkeys(names)]


def _open_place(name: str, cache: Path) -> Place:
    if name.partition(":")[0] in WRITABLE and ":" in name:
        return Place(name.rstrip("/"), open_store(name, field="URI", retries=RETRIES), cache)
    folder = Path(name)
    if folder.exists() and not folder.is_dir():
        raise InputError("FOLDER", f"{name}, which is a file", "a folder with runs", "Name the folder that it is in.")
    if not folder.exists() and name != DEFAULT:
        raise InputError("FOLDER", f"{name}, which does not exist", "a folder with runs", "Name another one.")
    return Place(name.rstrip("/") or name, LocalStore(folder.absolute()), cache)


@contextmanager
def dashboard(names: Sequence[str], address: Address, cache: Path | None = None) -> Iterator[ThreadingHTTPServer]:
    """Open the dashboard of these folders and stores; yield its server, which answers once it serves.

    `cache`: the folder of the indices; by default in the cache of downloads.

    Raises:
        InputError: a place, the address or the port cannot be used.
    """
    address.require_key()
    places = open_places(names, cache or cache_dir() / "dashboard")
    with TemporaryDirectory(prefix="lorarl-dashboard-") as temporary:
        site = Site(places, Copies(Path(temporary)))
        server = open_server(site.respond, FIRST_PORT, address.port, host=address.host, key=address.key)
        with server:
            for place in places:
                begin(place.follow)
            yield server
