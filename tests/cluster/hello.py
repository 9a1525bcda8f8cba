"""A pod that answers, and its Service: what the node's own tests run (go/hello)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from node import images
from node.node import Node
from support.cluster.processes import find

IMAGE = "localhost/hello:1"
PORT = 8080


def load(node: Node) -> None:
    """Put the image into the node's store."""
    node.load(images.of_program(IMAGE, Path(find("hello"))))


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """A pod that answers on PORT."""
    container = {"name": "hello", "image": IMAGE, "args": ["serve", f":{PORT}"], "ports": [{"containerPort": PORT}]}
    ready = {"httpGet": {"path": "/ready", "port": PORT}, "periodSeconds": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"containers": [{**container, "readinessProbe": ready}], "terminationGracePeriodSeconds": 1, **spec},
    }


def service(name: str) -> dict[str, Any]:
    """The Service of a pod of that name, on port 80."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": PORT}]},
    }
