"""Dashboards of a cluster for tests: readers and their rights, jobs, and the page behind a gate to the API server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser

from lorarl_trainer.dashboard.cluster.access import Access
from lorarl_trainer.dashboard.cluster.api import Api
from lorarl_trainer.dashboard.cluster.serve import serving
from lorarl_trainer.dashboard.serve import Address
from lorarl_trainer.storage import Store
from lorarl_trainer.threads import begin
from support.cluster.client import ApiError, Object, path_of
from support.cluster.control_plane import Cluster
from support.cluster.lorarljobs import lorarljob
from support.cluster.processes import until
from support.tcp_gate import TcpGate
from unit.trainer.dashboard.recorded import Client, Reply

SECONDS = 40.0


@dataclass
class Clock:
    """The age of reviews, without waiting for it."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@dataclass(frozen=True)
class Page:
    """A dashboard, its clock, and what is between it and the API server."""

    client: Client
    gate: TcpGate
    clock: Clock = field(default_factory=Clock)

    def get(self, token: str, path: str = "") -> Reply:
        return self.client.get(path, Authorization=f"Bearer {token}")

    def shows(self, token: str, text: str, path: str = "") -> Reply:
        """The answer, as soon as it has a text."""
        last: list[Reply] = []

        def probe() -> bool:
            last[:] = [self.get(token, path)]
            return text in last[0].text

        until(SECONDS, f"the page shows {text!r}", probe)
        return last[0]


def account(namespace: str, name: str) -> Object:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}


def grant(cluster: Cluster, namespace: str, reader: str) -> str:
    """Let a reader list the jobs of a namespace; return the binding's name."""
    rules = [{"apiGroups": ["lorarl.io"], "resources": ["lorarljobs"], "verbs": ["list"]}]
    meta = {"name": f"sees-{reader}", "namespace": namespace}
    rbac = "rbac.authorization.k8s.io"
    cluster.api.apply({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": reader, "namespace": "team-a"}
    ref = {"apiGroup": rbac, "kind": "Role", "name": meta["name"]}
    binding = {"apiVersion": f"{rbac}/v1", "kind": "RoleBinding", "metadata": meta, "roleRef": ref}
    cluster.api.apply({**binding, "subjects": [subject]})
    return meta["name"]


def job(cluster: Cluster, namespace: str, name: str, *, labels: dict[str, str] | None = None) -> Object:
    return cluster.api.create(lorarljob(namespace, name, labels=labels))


def report(cluster: Cluster, namespace: str, name: str, **status: object) -> None:
    cluster.api.request(
        "PATCH", path_of("LoRARLJob", namespace, name, "status"), {"status": status}, "application/merge-patch+json"
    )


def running(reason: str, message: str) -> Object:
    at = "2026-01-01T00:00:00Z"
    return {"type": "Running", "status": "False", "reason": reason, "message": message, "lastTransitionTime": at}


def token_of(cluster: Cluster, reader: str) -> str:
    return cluster.service_account_token("team-a", reader)


@contextmanager
def dashboard(cluster: Cluster, stores: list[Store] | None = None, namespaces: tuple[str, ...] = ()) -> Iterator[Page]:
    """A dashboard with the chart's own rights, which reaches the API server through a gate."""
    from kubernetes.client import Configuration
    from kubernetes.config import load_kube_config

    clock = Clock()
    with TcpGate(cluster.port) as gate:
        token = cluster.service_account_token("lorarl-system", "dashboard-lorarl")
        path = gate.kubeconfig(cluster, token)
        configuration = Configuration()
        load_kube_config(str(path), client_configuration=configuration)
        api = Api(configuration)
        with serving(api, stores or [], namespaces, Address(port=0), Access(api, clock)) as server:
            begin(server.serve_forever)
            try:
                yield Page(Client(f"http://127.0.0.1:{server.server_address[1]}/"), gate, clock)
            finally:
                server.shutdown()


def may_list(cluster: Cluster, token: str, namespace: str = "team-a") -> bool:
    """Whether the API server has taken in what a reader may do, which it does a moment after a grant."""
    try:
        cluster.api_as(token).list("LoRARLJob", namespace)
    except ApiError:
        return False
    return True


def may_review(cluster: Cluster) -> bool:
    """Whether the dashboard's account may ask whose a token is."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}}
    api = cluster.api_as(cluster.service_account_token("lorarl-system", "dashboard-lorarl"))
    try:
        api.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
    except ApiError:
        return False
    return True


def unclosed(text: str) -> list[str]:
    """Tags that are not closed where they should be."""
    open_tags: list[str] = []
    wrong: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "link", "input"):
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            if not open_tags or open_tags.pop() != tag:
                wrong.append(f"{tag} at {self.getpos()}")

    parser = Parser()
    parser.feed(re.sub("<option[^>]*>[^<]*(</option>)?", "", text))
    return wrong + open_tags
