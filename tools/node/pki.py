"""The cluster's certificates, made by openssl: authorities, a key pair per program, and the key of ServiceAccounts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.errors import NodeError
from node.settings import API_SERVICE, DOMAIN, Settings

DAYS = 365
# In place of the machine's own openssl.cnf, which adds extensions.
OPENSSL_CONF = "[req]\ndistinguished_name = dn\n[dn]\n"
NEW_KEY = (
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-nodes",
    "-days",
    str(DAYS),
    "-config",
    "openssl.cnf",
)


@dataclass(frozen=True)
class Certificate:
    """Its holder, and the names that it is reached by. The subject has Kubernetes' user (CN) and group (O)."""

    name: str
    subject: str
    alternative_names: tuple[str, ...] = ()
    authority: str = "ca"


def certificates(settings: Settings) -> tuple[Certificate, ...]:
    """Return all certificates except the authorities'."""
    service = "kubernetes.default.svc"
    api_names = [f"IP:{address}" for address in (API_SERVICE, settings.node_address, "127.0.0.1")]
    api_names += [
        f"DNS:{name}" for name in ("localhost", "kubernetes", "kubernetes.default", service, f"{service}.{DOMAIN}")
    ]
    return (
        Certificate("kube-apiserver", "/CN=kube-apiserver", tuple(api_names)),
        Certificate("kube-apiserver-kubelet-client", "/CN=kube-apiserver-kubelet-client"),
        Certificate("front-proxy-client", "/CN=front-proxy-client", authority="front-proxy-ca"),
        _of_kubelet("kubelet", settings),
        Certificate("kube-controller-manager", "/CN=system:kube-controller-manager"),
        Certificate("kube-scheduler", "/CN=system:kube-scheduler"),
        Certificate("kube-proxy", "/CN=system:kube-proxy"),
        Certificate("coredns", "/CN=system:coredns"),
        Certificate("admin", "/O=system:masters/CN=admin"),
    )


def _of_kubelet(name: str, settings: Settings) -> Certificate:
    node = settings.hostname
    return Certificate(name, f"/O=system:nodes/CN=system:node:{node}", (f"IP:{settings.node_address}", f"DNS:{node}"))


def make_for_second(first: Settings) -> None:
    """Write key and certificate of a second node's kubelet to that node's pki folder, signed by the first."""
    second, name = first.second, f"kubelet-{first.second.hostname}"
    _openssl(first.pki, *request(_of_kubelet(name, second)))
    for source, target in (("ca.crt", "ca.crt"), (f"{name}.crt", "kubelet.crt"), (f"{name}.key", "kubelet.key")):
        shutil.copy(first.pki / source, second.pki / target)


def make(settings: Settings) -> None:
    """Write all keys and certificates to the node's pki folder."""
    folder = settings.pki
    (folder / "openssl.cnf").write_text(OPENSSL_CONF)
    for authority in ("ca", "front-proxy-ca"):
        constraints = (
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign,digitalSignature",
        )
        _openssl(
            folder,
            "req",
            "-x509",
            *NEW_KEY,
            *_files(authority),
            "-subj",
            f"/CN={settings.name}-{authority}",
            *constraints,
        )
    for certificate in certificates(settings):
        _openssl(folder, *request(certificate))
    _openssl(folder, "ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "service-account.key")
    _openssl(folder, "ec", "-in", "service-account.key", "-pubout", "-out", "service-account.pub")


def request(certificate: Certificate) -> list[str]:
    """Return openssl's arguments that make a certificate and its key."""
    authority = certificate.authority
    arguments = ["req", "-x509", *NEW_KEY, *_files(certificate.name), "-subj", certificate.subject]
    arguments += [
        "-CA",
        f"{authority}.crt",
        "-CAkey",
        f"{authority}.key",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]
    if certificate.alternative_names:
        arguments += ["-addext", f"subjectAltName={','.join(certificate.alternative_names)}"]
    return arguments


def _files(name: str) -> tuple[str, ...]:
    return ("-keyout", f"{name}.key", "-out", f"{name}.crt")


def _openssl(folder: Path, *arguments: str) -> None:
    command: Sequence[str] = ["openssl", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NodeError(f"{' '.join(command)}: {done.stderr}")
