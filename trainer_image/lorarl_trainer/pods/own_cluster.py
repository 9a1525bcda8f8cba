"""The cluster that a process belongs to: the one that KUBECONFIG names, or else that of its pod."""

from __future__ import annotations

import os
from typing import Any


def own_cluster() -> Any:
    """Return the official client's configuration of the API server, with the account to ask it by.

    Raises:
        ConfigException: neither is there, or it cannot be used.
        OSError: a file cannot be read.
    """
    # Imported here, in the main thread: Ray imports some of the same modules, and another thread would see them
    # half-initialized.
    from kubernetes.client import Configuration
    from kubernetes.config import load_incluster_config, load_kube_config

    configuration = Configuration()
    if kubeconfig := os.environ.get("KUBECONFIG"):
        load_kube_config(kubeconfig, client_configuration=configuration)
    else:
        load_incluster_config(configuration)
    return configuration
