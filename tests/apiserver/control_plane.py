"""A real API server over a real etcd, on loopback, in a folder that is thrown away."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

BINARIES = ("etcd", "kube-apiserver", "kubectl")


class ToolMissingError(Exception):
    """A binary that was not found; the text says how to get it."""


def find(name: str) -> str:
    """The path of a binary: in KUBEBUILDER_ASSETS, in the cache of `scripts/tools.sh`, or on PATH."""
    cache = Path(os.environ.get("LORARL_CACHE", Path.home() / ".cache/lorarl"))
    folders = [os.environ.get("KUBEBUILDER_ASSETS"), str(cache / "bin"), os.environ.get("PATH")]
    found = shutil.which(name, path=os.pathsep.join(folder for folder in folders if folder))
    if found is None:
        raise ToolMissingError(f"{name} is neither in KUBEBUILDER_ASSETS nor in {cache}/bin nor on PATH; scripts/tools.sh builds it")
    return found


@dataclass(frozen=True)
class Cluster:
    """A running API server."""

    kubectl_path: str
    kubeconfig: Path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator."""
        command = [self.kubectl_path, f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)

    def must(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl, which must succeed; what it printed."""
        done = self.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout


@contextmanager
def control_plane(folder: Path) -> Iterator[Cluster]:
    """Start etcd and kube-apiserver with their files in `folder`; stop both at the end.

    Raises:
        ToolMissingError: A binary is not there.
    """
    etcd, apiserver, kubectl = (find(name) for name in BINARIES)
    etcd_port, peer_port, port = _free_ports(3)
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = folder / "service-account.key"
    subprocess.run(["openssl", "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", key], check=True, capture_output=True)
    with ExitStack() as stack:
        endpoint = f"http://127.0.0.1:{etcd_port}"
        listening = [
            f"--listen-client-urls={endpoint}",
            f"--advertise-client-urls={endpoint}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
        ]
        stack.enter_context(_running([etcd, f"--data-dir={folder}/etcd", "--unsafe-no-fsync", *listening], folder / "etcd.log"))
        server = [
            apiserver,
            *(f"--etcd-servers={endpoint}", "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}/certs"),
            *(f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24"),
            *(
                "--service-account-issuer=https://localhost",
                f"--service-account-key-file={key}",
                f"--service-account-signing-key-file={key}",
            ),
            # No controller runs here that would make the service account this plugin waits for.
            "--disable-admission-plugins=ServiceAccount",
        ]
        process = stack.enter_context(_running(server, folder / "apiserver.log"))
        cluster = Cluster(kubectl, _kubeconfig(folder, port, token))
        _until_ready(cluster, process, folder / "apiserver.log")
        yield cluster


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _kubeconfig(folder: Path, port: int, token: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(f"""\
apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: "{folder}/certs/apiserver.crt"}}}}]
users: [{{name: u, user: {{token: "{token}"}}}}]
contexts: [{{name: d, context: {{cluster: c, user: u, namespace: default}}}}]
current-context: d
""")
    return path


def _until_ready(cluster: Cluster, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while (answer := cluster.kubectl("get", "--raw", "/readyz")).returncode != 0:
        tail = log.read_text(errors="replace")[-2000:]
        assert server.poll() is None, f"kube-apiserver ended with {server.returncode}:\n{tail}"
        assert time.monotonic() < deadline, f"kube-apiserver is not ready after 60 s: {answer.stderr}\n{tail}"
        time.sleep(0.1)
