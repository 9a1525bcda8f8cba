"""What `cluster.env` and `cluster.trustedCa` give each container of a job that runs lorarl."""

from __future__ import annotations

from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec

CA_FOLDER = "/etc/lorarl/ca"
_CA = "trusted-ca"
_BUNDLE = "ca.crt"
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE")
"""How OpenSSL, Go and Rust, Python's requests, curl and the AWS SDKs find a bundle."""
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})
_NOT_BY_PROXY = ("localhost", "127.0.0.1", ".svc", "$(KUBERNETES_SERVICE_HOST)")
"""Names and addresses within the pod and the cluster. The kubelet replaces the last one with the API server's address,
to which the trainer writes the job's status; Python takes no network such as 10.0.0.0/8 for it."""


def variables(spec: LoRARLJobSpec) -> dict[str, str]:
    """Environment variables by name. Those of `cluster.env` win; its NO_PROXY is extended."""
    bundle = dict.fromkeys(_CA_VARIABLES, f"{CA_FOLDER}/{_BUNDLE}") if spec.cluster.trusted_ca else {}
    env = bundle | spec.cluster.env
    if any(name.lower() in _PROXIES for name in env):
        for name in [each for each in env if each.lower() == "no_proxy"] or ["NO_PROXY"]:
            env[name] = ",".join(dict.fromkeys([*filter(None, env.get(name, "").split(",")), *_NOT_BY_PROXY]))
    return env


def ca_volumes(spec: LoRARLJobSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volume with the bundle, and its mount; nothing without `cluster.trustedCa`."""
    ca = spec.cluster.trusted_ca
    if ca is None:
        return [], []
    items = [{"key": ca.key, "path": _BUNDLE}]
    return (
        [{"name": _CA, "configMap": {"name": ca.config_map, "items": items}}],
        [{"name": _CA, "mountPath": CA_FOLDER, "readOnly": True}],
    )
