"""Starts the dashboard of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory

from lorarl_api.v1alpha1.stores import FOLDERS, WRITABLE
from lorarl_trainer.dashboard.cluster.access import Access
from lorarl_trainer.dashboard.cluster.api import Api
from lorarl_trainer.dashboard.cluster.records import Records
from lorarl_trainer.dashboard.cluster.site import ClusterSite
from lorarl_trainer.dashboard.cluster.watch import WatchedJobs
from lorarl_trainer.dashboard.files import Copies
from lorarl_trainer.dashboard.serve import FIRST_PORT, KEY, RETRIES, Address
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress.web import listen
from lorarl_trainer.storage import Store, open_store
from lorarl_trainer.threads import begin


@contextmanager
def cluster_dashboard(
    uris: Sequence[str], namespaces: Sequence[str], address: Address
) -> Iterator[ThreadingHTTPServer]:
    """Open the dashboard of a cluster's jobs; yield its server, which answers once it serves.

    Args:
        uris: the stores with the jobs' records.
        namespaces: those whose jobs to list; none for all of the cluster.
        address: where to listen. It needs no key, because every request needs a token.

    Raises:
        InputError: a store, the cluster or the port cannot be used.
    """
    if address.key:
        raise InputError(KEY, "a key beside --cluster", "no key", "Unset it: readers give tokens of the cluster.")
    stores = [_open(uri) for uri in dict.fromkeys(uris)]
    with serving(Api.connect(), stores, namespaces, address) as server:
        yield server


@contextmanager
def serving(
    api: Api, stores: Sequence[Store], namespaces: Sequence[str], address: Address, access: Access | None = None
) -> Iterator[ThreadingHTTPServer]:
    """Serve an API server's jobs. Only tests give `access`."""
    watched = [WatchedJobs(api, namespace) for namespace in dict.fromkeys(namespaces)] or [WatchedJobs(api)]
    with TemporaryDirectory(prefix="lorarl-dashboard-") as temporary:
        site = ClusterSite(api, watched, access or Access(api), Records(stores), Copies(Path(temporary)))
        with listen(site.respond, FIRST_PORT, address.port, host=address.host) as server:
            for one in watched:
                begin(one.follow)
            yield server


def _open(uri: str) -> Store:
    scheme = uri.partition(":")[0]
    if scheme not in WRITABLE or scheme in FOLDERS or ":" not in uri:
        # Tenants write to volumes, and a link there would lead to this pod's own files.
        hint = "Name what jobs have as checkpoint.uri. Records on claims are read with `kubectl lorarl open`."
        raise InputError("URI", uri, "an object store, such as s3://team/adapters", hint)
    return open_store(uri.rstrip("/"), field="URI", retries=RETRIES)
