"""What a network plugin makes of NetworkPolicies, for the node of `make cluster`, whose own network enforces none.

It knows what the policies of jobs use: pods by labels, in the policy's namespace or in all, and TCP ports. A test that
needs more must teach it, because everything else is refused.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from node.node import Node
from support.cluster.client import Api, Object

TABLE = "policies"
LOOK_SECONDS = 0.2


@contextmanager
def enforced(node: Node, api: Api, namespace: str) -> Iterator[None]:
    """The policies of a namespace hold between pods until the block ends, also for pods that come and go."""
    over = threading.Event()

    def keep() -> None:
        before = ""
        while not over.wait(LOOK_SECONDS):
            now = rules(api.list("NetworkPolicy", namespace), api.list("Pod"))
            if now != before:
                _load(node, now)
                before = now

    _load(node, rules(api.list("NetworkPolicy", namespace), api.list("Pod")))
    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _load(node, _empty())


def rules(policies: list[Object], pods: list[Object]) -> str:
    """The input of `nft -f`: who may begin a connection to the pods that a policy selects."""
    lines = []
    for policy in policies:
        spec, namespace = policy["spec"], policy["metadata"]["namespace"]
        assert spec["policyTypes"] == ["Ingress"], spec
        selected = _addresses(pods, spec["podSelector"], namespace)
        for rule in spec["ingress"]:
            sources = {one for peer in rule["from"] for one in _of_peer(pods, peer, namespace)}
            ports = [f"tcp dport {each['port']} " for each in rule.get("ports", [])] or [""]
            lines += [
                f"ip saddr {source} ip daddr {target} {port}accept"
                for source in sorted(sources)
                for target in selected
                for port in ports
            ]
        lines += [f"ip daddr {target} reject" for target in selected]
    body = "".join(f"    {line}\n" for line in lines)
    chain = "    type filter hook forward priority filter + 1;\n    ct state established,related accept\n"
    return f"{_empty()}table ip {TABLE} {{\n  chain forward {{\n{chain}{body}  }}\n}}\n"


def _of_peer(pods: list[Object], peer: Object, namespace: str) -> list[str]:
    everywhere = peer.get("namespaceSelector")
    assert everywhere in (None, {}) and peer.keys() <= {"namespaceSelector", "podSelector"}, peer
    return _addresses(pods, peer["podSelector"], namespace if everywhere is None else None)


def _addresses(pods: list[Object], selector: Object, namespace: str | None) -> list[str]:
    assert selector.keys() == {"matchLabels"}, selector
    wanted = selector["matchLabels"].items()
    return sorted(
        pod["status"]["podIP"]
        for pod in pods
        if wanted <= pod["metadata"].get("labels", {}).items()
        and namespace in (None, pod["metadata"]["namespace"])
        and "podIP" in pod["status"]
    )


def _empty() -> str:
    return f"table ip {TABLE}\ndelete table ip {TABLE}\n"


def _load(node: Node, text: str) -> None:
    command = node.must_be_there().enter(["nft", "-f", "-"])
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{text}"
