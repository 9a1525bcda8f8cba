"""The command lines of the node's programs. Nothing here reads, writes or starts anything."""

from __future__ import annotations

from collections.abc import Mapping

from node.settings import DOMAIN, POD_RANGE, SERVICE_RANGE, Settings

# In the order in which they start. buildkitd ends if there is no containerd yet.
BUILDER = ("containerd", "buildkitd")
CONTROL_PLANE = ("etcd", "kube-apiserver")
WORKERS = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns")
SECOND = ("containerd", "kubelet")
DEVICE_PLUGIN = "nvidia-device-plugin"
ALL = (*BUILDER, *CONTROL_PLANE, *WORKERS, DEVICE_PLUGIN)
# Other programs of scripts/tools.sh that these programs or this tool run.
BUILDER_HELPERS = ("ctr", "containerd-shim-runc-v2")
HELPERS = (*BUILDER_HELPERS, "kubectl", "pause")

ETCD = "http://127.0.0.1:2379"


def builder(settings: Settings) -> tuple[str, ...]:
    """Return the programs that images need, in the order in which they start."""
    return BUILDER if settings.builds else BUILDER[:1]


def kubernetes(settings: Settings) -> tuple[str, ...]:
    """Return the programs that every node needs, in the order in which they start."""
    return (*builder(settings), *CONTROL_PLANE, *WORKERS)


def of(settings: Settings) -> tuple[str, ...]:
    """Return all programs of a node, in the order in which they start."""
    if settings.is_second:
        return SECOND
    return (*kubernetes(settings), DEVICE_PLUGIN) if settings.driver else kubernetes(settings)


def commands(settings: Settings, tools: Mapping[str, str]) -> dict[str, list[str]]:
    """Return name -> program and arguments. `tools` has the path of each program."""
    run = settings.run
    flags = {
        "containerd": [f"--config={run}/containerd.toml"],
        "buildkitd": [f"--config={run}/buildkitd.toml"],
        "etcd": _etcd(settings),
        "kube-apiserver": _apiserver(settings),
        "kube-controller-manager": _controller_manager(settings),
        "kube-scheduler": [
            f"--kubeconfig={run}/kube-scheduler.kubeconfig",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ],
        "kubelet": [
            *(f"--config={run}/kubelet.yaml", f"--kubeconfig={run}/kubelet.kubeconfig"),
            *(f"--hostname-override={settings.hostname}", f"--node-ip={settings.node_address}"),
        ],
        "kube-proxy": [f"--config={run}/kube-proxy.yaml"],
        "coredns": [f"-conf={run}/Corefile"],
        # kubelet passes the device nodes itself, so plain runc will do, without NVIDIA's container runtime.
        DEVICE_PLUGIN: ["--device-list-strategy=envvar", "--pass-device-specs", "--driver-root-ctr-path=/"],
    }
    return {name: [tools[name], *flags[name]] for name in of(settings)}


def _etcd(settings: Settings) -> list[str]:
    return [
        *(f"--data-dir={settings.volatile}/etcd", "--unsafe-no-fsync", "--log-level=warn"),
        *(
            f"--listen-client-urls={ETCD}",
            f"--advertise-client-urls={ETCD}",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ),
    ]


def _apiserver(settings: Settings) -> list[str]:
    pki = settings.pki
    issuer = f"https://kubernetes.default.svc.{DOMAIN}"
    return [
        *(f"--etcd-servers={ETCD}", "--secure-port=6443", f"--advertise-address={settings.node_address}"),
        *(f"--service-cluster-ip-range={SERVICE_RANGE}", "--allow-privileged"),
        # PodSecurity is one of the plugins that are on by default.
        *("--authorization-mode=Node,RBAC", "--anonymous-auth=true", "--enable-admission-plugins=NodeRestriction"),
        *(f"--client-ca-file={pki}/ca.crt", f"--tls-cert-file={pki}/kube-apiserver.crt"),
        f"--tls-private-key-file={pki}/kube-apiserver.key",
        *(f"--service-account-issuer={issuer}", f"--service-account-key-file={pki}/service-account.pub"),
        f"--service-account-signing-key-file={pki}/service-account.key",
        *(
            f"--kubelet-client-certificate={pki}/kube-apiserver-kubelet-client.crt",
            f"--kubelet-certificate-authority={pki}/ca.crt",
        ),
        f"--kubelet-client-key={pki}/kube-apiserver-kubelet-client.key",
        # Otherwise `kubectl logs` and `exec` would look the node's name up in DNS.
        "--kubelet-preferred-address-types=InternalIP",
        # For API servers behind this one (Kueue's visibility).
        *(
            f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
        ),
        *("--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group"),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        *(
            f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
            f"--proxy-client-key-file={pki}/front-proxy-client.key",
        ),
    ]


def _controller_manager(settings: Settings) -> list[str]:
    pki = settings.pki
    kubeconfig = f"{settings.run}/kube-controller-manager.kubeconfig"
    return [
        *(
            f"--kubeconfig={kubeconfig}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            "--use-service-account-credentials",
        ),
        *(f"--service-account-private-key-file={pki}/service-account.key", f"--root-ca-file={pki}/ca.crt"),
        *(f"--cluster-signing-cert-file={pki}/ca.crt", f"--cluster-signing-key-file={pki}/ca.key"),
        *(f"--cluster-cidr={POD_RANGE}", f"--service-cluster-ip-range={SERVICE_RANGE}"),
        f"--flex-volume-plugin-dir={settings.run}/volume-plugins",
    ]
