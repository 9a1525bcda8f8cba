"""A real API server over a real etcd; Kubernetes' own controllers and scheduler are in controllers.py.

All of it is on loopback, with its files and logs in one folder that is deleted. Every program is a separate user
(`admin`, `kuberay`, ...), so that the audit log says who did what.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.cluster.audit import logged
from support.cluster.client import Api, Object
from support.cluster.kubectl import KubectlUser
from support.cluster.processes import find, free_ports, running, until

READY_SECONDS = 60.0
# What ServiceAccounts' tokens are signed with, in the folder of the control plane.
SERVICE_ACCOUNT_KEY = "service-account.key"
# Go collects garbage when the heap has grown by so many percent. 100 cost a quarter of kube-apiserver's time.
COLLECT_LESS = {"GOGC": "200"}
# The users that may do anything, each under its own name.
USERS = ("admin", "kube-controller-manager", "kube-scheduler", "kuberay", "kueue", "kwok")
# Who asked for what: verbs and objects are counted, the bodies are not needed.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True)
class Cluster(KubectlUser):
    """A running API server."""

    folder: Path
    port: int
    kubectl_path: str
    tokens: dict[str, str]
    api: Api

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        return self.folder / "certs/apiserver.crt"

    @property
    def audit_log(self) -> Path:
        """One JSON event a line, when the control plane was started with `audit=True`."""
        return self.folder / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.kubeconfig_of("admin")

    def kubeconfig_of(self, user: str) -> Path:
        """The kubeconfig of one of USERS."""
        return self.write_kubeconfig(user, self.tokens[user])

    def write_kubeconfig(self, name: str, token: str, server: str | None = None) -> Path:
        """A kubeconfig for any token, such as a ServiceAccount's. `server` names a proxy before the API server."""
        path = self.folder / f"{name}.kubeconfig"
        address = {"server": server} if server else {"server": self.url, "certificate-authority": str(self.ca)}
        parts = {
            "clusters": [{"name": "c", "cluster": address}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "d", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
        }
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "d", **parts}))
        return path

    def api_as(self, token: str) -> Api:
        """A client with another token."""
        return Api(self.port, str(self.ca), token)

    def service_account_token(self, namespace: str, name: str) -> str:
        """A token of a ServiceAccount, as a pod of it would have."""
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 36000},
        }
        answer = self.api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", request)
        token: str = answer["status"]["token"]
        return token

    def audited(self, user: str) -> list[Object]:
        """A user's requests as audit events in order. A ServiceAccount is system:serviceaccount:<namespace>:<name>."""
        return [event for event in logged(self.audit_log) if event["user"]["username"] == user]

    @property
    def kubectl_command(self) -> list[str]:
        return [self.kubectl_path, f"--kubeconfig={self.folder}/admin.kubeconfig", f"--cache-dir={self.folder}/kubectl"]


@contextmanager
def control_plane(
    folder: Path, *, service_accounts: bool = False, audit: bool = False, admission: Sequence[str] = ()
) -> Iterator[Cluster]:
    """Start etcd and kube-apiserver with their files in `folder`; stop them at the end.

    Args:
        folder: Where data, certificates and logs go.
        service_accounts: whether pods need a ServiceAccount. Only if controllers will run, which make those of new
            namespaces.
        audit: Write every request to `audit_log`, with who made it.
        admission: Admission plugins that are not on by default.

    Raises:
        ToolMissingError: A binary is not there.
    """
    etcd, apiserver, kubectl = (find(name) for name in ("etcd", "kube-apiserver", "kubectl"))
    etcd_port, peer_port, port = free_ports(3)
    tokens = {user: secrets.token_hex(16) for user in USERS}
    (folder / "tokens.csv").write_text(
        "".join(f'{token},{user},{user},"system:masters"\n' for user, token in tokens.items())
    )
    key = str(folder / SERVICE_ACCOUNT_KEY)
    subprocess.run(
        ["openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", key], check=True, capture_output=True
    )
    with ExitStack() as stack:
        # Hundreds of megabytes that are of no use; the logs stay.
        stack.callback(shutil.rmtree, folder / "etcd", ignore_errors=True)
        endpoint = f"http://127.0.0.1:{etcd_port}"
        stack.enter_context(
            running([etcd, *_etcd_flags(folder, endpoint, peer_port)], folder / "etcd.log", COLLECT_LESS)
        )
        flags = _apiserver_flags(folder, endpoint, port, key, service_accounts=service_accounts, audit=audit)
        if admission:
            flags.append(f"--enable-admission-plugins={','.join(admission)}")
        server = stack.enter_context(running([apiserver, *flags], folder / "kube-apiserver.log", COLLECT_LESS))
        until(READY_SECONDS, "kube-apiserver has made its certificate", (folder / "certs/apiserver.crt").exists, server)
        cluster = Cluster(folder, port, kubectl, tokens, Api(port, f"{folder}/certs/apiserver.crt", tokens["admin"]))
        cluster.kubeconfig_of("admin")
        until(READY_SECONDS, "kube-apiserver is ready", lambda: _is_ready(cluster), server)
        yield cluster


def _etcd_flags(folder: Path, endpoint: str, peer_port: int) -> list[str]:
    return [
        f"--data-dir={folder}/etcd",
        "--unsafe-no-fsync",
        "--log-level=warn",
        f"--listen-client-urls={endpoint}",
        f"--advertise-client-urls={endpoint}",
        f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
    ]


def _apiserver_flags(folder: Path, etcd: str, port: int, key: str, *, service_accounts: bool, audit: bool) -> list[str]:
    flags = [
        *(f"--etcd-servers={etcd}", "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}/certs"),
        *(
            f"--token-auth-file={folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/16",
        ),
        *(
            "--service-account-issuer=https://localhost",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
        ),
        # Nothing throttles: a burst of a thousand jobs measures the operator, not this server's fairness.
        *(
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=3000",
            "--max-mutating-requests-inflight=1000",
        ),
    ]
    if not service_accounts:
        # No controller runs that would make the ServiceAccount this plugin waits for.
        flags.append("--disable-admission-plugins=ServiceAccount")
    if audit:
        policy = folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        flags += [f"--audit-policy-file={policy}", f"--audit-log-path={folder}/audit.log", "--audit-log-mode=blocking"]
    return flags


def _is_ready(cluster: Cluster) -> bool:
    try:
        return bool(cluster.api.request("GET", "/readyz"))
    except Exception:  # noqa: BLE001 -- refused, reset, forbidden while roles are made: all of it means "not yet"
        return False
