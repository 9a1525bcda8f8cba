"""A second node of the cluster, for tests that lose a whole machine: at once, and without a word.

It has its own namespaces, containerd and kubelet, and one link to the first node. That one routes for it, so kube-proxy
there also translates the Services' addresses for its pods.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from node import cgroups, configuration, namespaces, network, pki, prerequisites
from node.errors import NodeError
from node.node import Node, wait_until
from node.settings import Settings

END_SECONDS = 30.0
COPY_SECONDS = 600.0


@contextmanager
def second_node(first: Node, images: Iterable[str]) -> Iterator[Node]:
    """A second node that is ready for pods, until the block ends; then it leaves no trace.

    Args:
        first: The node whose cluster it joins.
        images: Names of images of the first node that it needs too.
    """
    forget(first)
    try:
        yield join(first, images)
    finally:
        forget(first)


def join(first: Node, images: Iterable[str]) -> Node:
    """Start a second node and return it, ready for pods. See `second_node`.

    Raises:
        NodeError: It cannot be started.
    """
    settings = first.settings.second
    for folder in (settings.run / "cni", settings.pki, settings.volatile / "tmp", *settings.places.values()):
        folder.mkdir(parents=True, exist_ok=True)
    pki.make_for_second(first.settings)
    for name, text in _files(first.settings).items():
        (settings.run / name).write_text(text)
    cgroups.make(settings.name)
    init = namespaces.start(settings.run / "init", settings.places)
    network.connect_second(first.must_be_there(), init, settings)
    second = Node(settings)
    second.start("containerd")
    second.wait("containerd is ready", settings.containerd_socket.exists, "containerd")
    second.load_pause()
    for image in images:
        if _digest(image, second) != _digest(image, first):
            _copy(image, first, second)
    second.start("kubelet")
    first.kubectl("wait", f"node/{settings.hostname}", "--for=create", "--timeout=30s")
    first.kubectl("wait", f"node/{settings.hostname}", "--for=condition=Ready", "--timeout=50s")
    return second


def lose(first: Node) -> None:
    """End a second node as a power cut does: all processes are killed, and its addresses are gone with its network."""
    init = Node(first.settings.second).init
    if init is not None:
        os.kill(init.pid, signal.SIGKILL)
        wait_until(END_SECONDS, "the second node's processes have ended", lambda: not init.alive)


def forget(first: Node) -> None:
    """Remove what there is of a second node, lost or not, but for its images: copying them takes a minute."""
    settings = first.settings.second
    lose(first)
    first.kubectl("delete", "node", settings.hostname, "--ignore-not-found")
    cgroups.remove(settings.name)
    for folder in (settings.run, settings.volatile):
        shutil.rmtree(folder, ignore_errors=True)


def _files(first: Settings) -> dict[str, str]:
    settings = first.second
    keys = [(settings.pki / name).read_bytes() for name in ("ca.crt", "kubelet.crt", "kubelet.key")]
    return {
        "containerd.toml": configuration.containerd(
            settings, prerequisites.must_have_cni(), may_lower_oom_score=prerequisites.may_lower_oom_score()
        ),
        "cni/10-pods.conflist": configuration.cni(settings),
        "kubelet.yaml": configuration.kubelet(settings),
        "kubelet.kubeconfig": configuration.kubeconfig(first.api_url, *keys),
        "pod-resolv.conf": configuration.pod_resolv_conf(),
    }


def _digest(image: str, node: Node) -> str:
    """The digest of an image; empty where the node has none."""
    lines = node.ctr("images", "list", f"name=={image}").splitlines()
    return next((line.split()[2] for line in lines if line.startswith(image)), "")


def _copy(image: str, source: Node, target: Node) -> None:
    """Copy an image from one node's store to another's, without the parts that are there: most of it never changes."""
    stored, there = _blobs(source), _blobs(target)
    digest = _digest(image, source)
    text = (stored / _name(digest)).read_bytes()
    manifest = json.loads(text)
    named = {"mediaType": manifest["mediaType"], "digest": digest, "size": len(text)}
    index = {"schemaVersion": 2, "manifests": [{**named, "annotations": {"io.containerd.image.name": image}}]}
    parts = [_name(part["digest"]) for part in (named, manifest["config"], *manifest["layers"])]
    command = target.ctr_command("images", "import", "--local", "-")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as taking:
        with tarfile.open(fileobj=taking.stdin, mode="w|") as archive:
            for name, content in (("oci-layout", {"imageLayoutVersion": "1.0.0"}), ("index.json", index)):
                written = json.dumps(content).encode()
                entry = tarfile.TarInfo(name)
                entry.size = len(written)
                archive.addfile(entry, io.BytesIO(written))
            for part in parts:
                if not (there / part).exists():
                    archive.add(stored / part, f"blobs/sha256/{part}")
        _, error = taking.communicate(timeout=COPY_SECONDS)
    if taking.returncode:
        raise NodeError(f"image {image} could not be copied to {target.settings.hostname}: {error.decode().strip()}")


def _blobs(node: Node) -> Path:
    return node.settings.data / "containerd/io.containerd.content.v1.content/blobs/sha256"


def _name(digest: str) -> str:
    return digest.removeprefix("sha256:")
