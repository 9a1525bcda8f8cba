"""The configuration files of the node's programs, as text. Nothing here reads or writes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from node.settings import DOMAIN, NODE, POD_GATEWAY, POD_RANGE, Settings

PAUSE_IMAGE = "localhost/pause:1"
# BuildKit and kubelet share it, so kubelet can run what BuildKit built.
IMAGE_NAMESPACE = "k8s.io"
BUILD_CACHE_GB = 25
# containerd and kubelet keep sockets and state here by default. The node's mount namespace has its own folders there.
CONTAINERD_STATE = "/run/containerd"
CONTAINERD_ADDRESS = f"{CONTAINERD_STATE}/containerd.sock"


def containerd(settings: Settings, cni_plugins: str, *, may_lower_oom_score: bool) -> str:
    """Return containerd's config.toml.

    Args:
        settings: the node.
        cni_plugins: the folder of the CNI plugins.
        may_lower_oom_score: whether there is CAP_SYS_RESOURCE. Without it runc cannot give a sandbox the score that
            kubelet asks for, and fails with "can't get final child's PID from pipe". containerd then keeps its own
            score.
    """
    return f"""version = 3
root = "{settings.data}/containerd"
state = "{CONTAINERD_STATE}"
[grpc]
  address = "{CONTAINERD_ADDRESS}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{settings.data}/containerd/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {json.dumps(not may_lower_oom_score)}
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni_plugins}"]
    conf_dir = "{settings.run}/cni"
"""


def buildkitd(settings: Settings) -> str:
    """Return buildkitd.toml: containerd is its worker, and a build's RUN has the node's network.

    One rule says what is kept. BuildKit's default rules would keep only 512 MB of package caches, and nothing on a disk
    that is 80% full.
    """
    return f"""root = "{settings.data}/buildkit"
[grpc]
  address = ["unix://{settings.buildkit_socket}"]
[otel]
  socketPath = "{settings.buildkit_socket.parent}/otel.sock"
[worker.oci]
  enabled = false
[worker.containerd]
  enabled = true
  address = "{CONTAINERD_ADDRESS}"
  namespace = "{IMAGE_NAMESPACE}"
  snapshotter = "overlayfs"
  networkMode = "host"
  defaultCgroupParent = "/{settings.name}/builds"
  gc = true
  [[worker.containerd.gcpolicy]]
    all = true
    reservedSpace = "{BUILD_CACHE_GB}GB"
    maxUsedSpace = "{BUILD_CACHE_GB}GB"
"""


def cni(settings: Settings) -> str:
    """Return how a pod gets its network: a link to the node, and routing for everything else.

    A bridge would not do: over it, an answer to a Service's client on the same node bypasses kube-proxy's address
    translation, unless the kernel module br_netfilter is loaded.
    """
    ipam = {"type": "host-local", "ranges": [[{"subnet": str(settings.pods)}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return json.dumps(
        {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}
    )


def kubelet(settings: Settings) -> str:
    """Return the KubeletConfiguration."""
    pki = settings.pki
    # A virtual machine with GPUs may start with a quarter of its memory and grow. The kubelet only sees the start.
    memory = "0%" if settings.driver else "100Mi"
    return _yaml(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "x509": {"clientCAFile": f"{pki}/ca.crt"},
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{pki}/kubelet.crt",
            "tlsPrivateKeyFile": f"{pki}/kubelet.key",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_ADDRESS}",
            "cgroupDriver": "cgroupfs",  # no systemd
            "cgroupRoot": f"/{settings.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,  # kube-proxy uses nftables; nothing needs iptables
            "clusterDNS": [str(POD_GATEWAY)],
            "clusterDomain": DOMAIN,
            "resolvConf": f"{settings.run}/pod-resolv.conf",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "serializeImagePulls": False,
            # Others use the disk too, and images take long to build: delete nothing before the disk is full.
            "evictionHard": {"memory.available": memory, "nodefs.available": "1%", "imagefs.available": "1%"},
            "enforceNodeAllocatable": ["none" if settings.driver else "pods"],
            "imageGCHighThresholdPercent": 100,
            "imageMinimumGCAge": "24h",
        }
    )


def kube_proxy(settings: Settings) -> str:
    """Return the KubeProxyConfiguration."""
    return _yaml(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clusterCIDR": str(POD_RANGE),
            "hostnameOverride": NODE,
            "healthzBindAddress": f"{settings.node_address}:10256",
            "clientConnection": {"kubeconfig": f"{settings.run}/kube-proxy.kubeconfig"},
            "conntrack": {"maxPerCore": 0},  # the table is the host's, so its size stays
        }
    )


def corefile(settings: Settings) -> str:
    """Return the Corefile. Only the cluster's names exist. Pods have no way out, so there is no server to ask."""
    return f"""{DOMAIN} in-addr.arpa ip6.arpa {{
    bind {POD_GATEWAY}
    errors
    ready {settings.node_address}:8181
    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{
        kubeconfig {settings.run}/coredns.kubeconfig
        pods insecure
    }}
    cache 5
    loadbalance
}}
. {{
    bind {POD_GATEWAY}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def pod_resolv_conf() -> str:
    """Return the resolv.conf for pods with `dnsPolicy: Default`."""
    return f"nameserver {POD_GATEWAY}\n"


def node_resolv_conf(candidates: Iterable[str]) -> str:
    """Return the resolv.conf for pulls and builds: the first with a server that the node's network namespace reaches.

    It does not reach a server on the host's loopback interface (systemd-resolved, dnsmasq). The last resort is a public
    server.
    """
    for text in candidates:
        lines = [line for line in text.splitlines() if not _is_out_of_reach(line)]
        if any(line.split()[:1] == ["nameserver"] for line in lines):
            return "\n".join(lines) + "\n"
    return "nameserver 1.1.1.1\n"


def _is_out_of_reach(line: str) -> bool:
    words = line.split()
    if words[:1] != ["nameserver"]:
        return False
    try:
        return ip_address(words[1].partition("%")[0]).is_loopback
    except (IndexError, ValueError):
        return True  # not an address


def kubeconfig(server: str, ca: bytes, certificate: bytes, key: bytes) -> str:
    """Return a kubeconfig that refers to no other file, so that it can be copied elsewhere."""
    return _yaml(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lorarl",
            "clusters": [{"name": "lorarl", "cluster": {"server": server, "certificate-authority-data": _base64(ca)}}],
            "users": [
                {
                    "name": "lorarl",
                    "user": {"client-certificate-data": _base64(certificate), "client-key-data": _base64(key)},
                }
            ],
            "contexts": [
                {"name": "lorarl", "context": {"cluster": "lorarl", "user": "lorarl", "namespace": "default"}}
            ],
        }
    )


def first_objects() -> list[dict[str, Any]]:
    """Return what kubeadm would create: the API server's rights at the kubelet, and those of CoreDNS."""
    reads = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    return [
        {**_rbac("ClusterRole", "system:coredns"), "rules": reads},
        _binding("system:coredns", role="system:coredns", user="system:coredns"),
        _binding(
            "kube-apiserver-kubelet-client", role="system:kubelet-api-admin", user="kube-apiserver-kubelet-client"
        ),
    ]


def _rbac(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}}


def _binding(name: str, *, role: str, user: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        **_rbac("ClusterRoleBinding", name),
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }


def _yaml(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1) + "\n"  # JSON is YAML


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
