"""Brings a node up and takes it down.

It comes up in two stages: the builder (containerd and BuildKit, enough to build images), and the whole node. A file
says which stage is complete. It is missing while programs are being started, so that the next start sees and removes
what a killed one left.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from node import cgroups, configuration, namespaces, network, pki, prerequisites, programs, second
from node.configuration import IMAGE_NAMESPACE
from node.errors import NodeError, NotReadyError
from node.node import Node, wait_until
from node.settings import NODE, Settings

BUILDER, WHOLE = "builder", "node"
LOCK_SECONDS = 120.0
END_SECONDS = 30.0
# Ports and paths at the node's address where programs report that they are ready.
KUBE_PROXY_READY, COREDNS_READY = (10256, "/healthz"), (8181, "/ready")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Builder:
    """Where images are built and found."""

    buildkit_socket: Path
    containerd_socket: Path
    image_namespace: str = IMAGE_NAMESPACE


def builder(settings: Settings, say: Say) -> Builder:
    """Start containerd and BuildKit unless they run.

    Raises:
        NotReadyError: the machine lacks something. Nothing was started.
        NodeError: they cannot be started.
    """
    _bring_up(settings, BUILDER, say)
    return Builder(settings.buildkit_socket, settings.containerd_socket)


def up(settings: Settings, say: Say) -> Node:
    """Start the whole node unless it runs; return it ready for pods.

    Raises:
        NotReadyError: the machine lacks something. Nothing was started.
        NodeError: it cannot be started.
    """
    return _bring_up(settings, WHOLE, say)


def check(settings: Settings, say: Say) -> None:
    """Check whether this machine can have a node. Programs that can still be built do not count.

    Raises:
        NotReadyError: it lacks something.
    """
    _check(settings, (), say, fresh=not settings.run.exists())


def down(settings: Settings, say: Say, *, everything: bool) -> None:
    """Remove every trace of the node; with `everything`, also images and build cache.

    Raises:
        NodeError: something could not be removed.
    """
    if os.geteuid() != 0:
        raise NodeError("this is not root, and the node belongs to root. Run it as root.")
    with _lock(settings):
        was_there = settings.run.exists()
        _remove(settings)
        if everything and settings.data.exists():
            shutil.rmtree(settings.data)
        say("the node is gone" if was_there else "there is no node")
        if settings.data.exists():
            say(f"images and build cache stay in {settings.data}; `make cluster-down ALL=1` removes them")


def _bring_up(settings: Settings, stage: str, say: Say) -> Node:
    started = time.monotonic()
    with _lock(settings):
        is_new = not settings.run.exists()
        node = Node(settings)
        complete = settings.run / "complete"
        reached = complete.read_text() if complete.exists() and node.init else ""
        needed = programs.builder(settings) if stage == BUILDER else node.programs
        if reached in (stage, WHOLE) and set(needed) <= node.running().keys():
            say(f"the {stage} is up already")
            if reached == WHOLE:
                _hand_out(settings)  # another checkout may have started it
            return node
        helpers = programs.BUILDER_HELPERS if stage == BUILDER else programs.HELPERS
        _check(settings, (*needed, *helpers), say, fresh=is_new)
        if not reached and not is_new:
            say("removing what an unfinished start has left")
            _remove(settings)
        complete.unlink(missing_ok=True)
        if not reached:
            _make_empty_node(settings)
        sockets = {"containerd": settings.containerd_socket, "buildkitd": settings.buildkit_socket}
        for name in programs.builder(settings):
            node.start(name)
            node.wait(f"{name} is ready", partial(_accepts, sockets[name]), name)
        if WHOLE in (stage, reached):
            _start_kubernetes(node)
        complete.write_text(WHOLE if WHOLE in (stage, reached) else BUILDER)
        say(f"the {stage} is up after {time.monotonic() - started:.1f} s")
        return node


def _check(settings: Settings, tools: Sequence[str], say: Say, *, fresh: bool) -> None:
    facts = prerequisites.look(settings, tools, fresh=fresh)
    packages = prerequisites.missing_packages(facts)
    if packages and facts.is_root and settings.install and prerequisites.can_install():
        say(f"installing {' '.join(packages)}")
        prerequisites.install(packages)
        facts = prerequisites.look(settings, tools, fresh=fresh)
    if found := prerequisites.complaints(facts, settings):
        raise NotReadyError(
            "this machine is not ready for a node:\n" + "\n".join(f"- {complaint}" for complaint in found)
        )


def _make_empty_node(settings: Settings) -> None:
    """Make folders, configuration, namespaces and network, and start no program yet."""
    shutil.rmtree(settings.volatile, ignore_errors=True)  # after a crash of the machine
    shutil.rmtree(settings.logs, ignore_errors=True)
    for folder in (
        settings.run,
        settings.pki,
        settings.logs,
        *(settings.run / name for name in ("cni", "buildkit")),
        *(settings.volatile / name for name in ("tmp", "etcd")),
        *settings.places.values(),
    ):
        folder.mkdir(parents=True, exist_ok=True)
    settings.pki.chmod(0o700)
    _write_configuration(settings)
    binds = dict(settings.places)
    _make_mount_points(settings, [Path(place) for place in binds])
    if Path("/etc/resolv.conf").exists():
        binds["/etc/resolv.conf"] = settings.run / "resolv.conf"
    try:
        cgroups.make(settings.name)
        init = namespaces.start(settings.run / "init", binds)
    except OSError as error:
        raise NodeError(f"the node's cgroup {settings.name} or its namespaces could not be made: {error}") from error
    network.connect(settings, init)


def _write_configuration(settings: Settings) -> None:
    pki.make(settings)
    resolvers = [
        path.read_text()
        for path in map(Path, ("/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"))
        if path.exists()
    ]
    files = {
        "containerd.toml": configuration.containerd(
            settings, prerequisites.must_have_cni(), may_lower_oom_score=prerequisites.may_lower_oom_score()
        ),
        "buildkitd.toml": configuration.buildkitd(settings),
        "cni/10-pods.conflist": configuration.cni(settings),
        "kubelet.yaml": configuration.kubelet(settings),
        "kube-proxy.yaml": configuration.kube_proxy(settings),
        "Corefile": configuration.corefile(settings),
        "resolv.conf": configuration.node_resolv_conf(resolvers),
        "pod-resolv.conf": configuration.pod_resolv_conf(),
    }
    for name, text in files.items():
        (settings.run / name).write_text(text)
    for user in ("kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "coredns"):
        _write_kubeconfig(settings, user, settings.run / f"{user}.kubeconfig")


def _write_kubeconfig(settings: Settings, user: str, path: Path) -> None:
    parts = [(settings.pki / name).read_bytes() for name in ("ca.crt", f"{user}.crt", f"{user}.key")]
    path.touch(mode=0o600)
    path.write_text(configuration.kubeconfig(settings.api_url, *parts))


def _hand_out(settings: Settings) -> None:
    """Give the node's user what they need: the administrator's kubeconfig, and a folder for logs."""
    settings.logs.mkdir(parents=True, exist_ok=True)
    _write_kubeconfig(settings, "admin", settings.kubeconfig)
    _give_to_caller(settings.out, settings.kubeconfig)


def _start_kubernetes(node: Node) -> None:
    settings = node.settings
    needed = programs.kubernetes(settings)
    node.start(*programs.CONTROL_PLANE)
    node.load_pause()
    node.wait("kube-apiserver is ready", lambda: node.get("/readyz"), *programs.CONTROL_PLANE)
    _hand_out(settings)
    node.start(*programs.WORKERS)
    objects = {"apiVersion": "v1", "kind": "List", "items": configuration.first_objects()}
    node.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(objects))
    node.wait("the node is ready", lambda: _is_ready(node.get(f"/api/v1/nodes/{NODE}")), *needed)
    node.wait(
        "pods can be made in `default`", lambda: node.get("/api/v1/namespaces/default/serviceaccounts/default"), *needed
    )
    node.wait("kube-proxy is ready", lambda: node.answers(*KUBE_PROXY_READY), *needed)
    node.wait("CoreDNS is ready", lambda: node.answers(*COREDNS_READY), *needed)
    if settings.driver:
        cgroups.lift_memory_limit(f"{settings.name}/kubepods")
        # It is the last, because it ends if the kubelet has not made its folder for device plugins yet.
        node.start(programs.DEVICE_PLUGIN)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
        return True


def _is_ready(node: dict[str, Any] | None) -> bool:
    conditions = node["status"].get("conditions", []) if node else []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _remove(settings: Settings) -> None:
    """Remove a node, whole or not. The folder `run` goes last: while it exists, there may be more to remove."""
    # From here on there is no node, so no start continues from it.
    (settings.run / "complete").unlink(missing_ok=True)
    node = Node(settings)
    init = node.init
    second.lose(node)
    cgroups.remove(settings.second.name)
    if init is not None:
        node.stop("kubelet", signal.SIGKILL)  # it would start containers again
        if "containerd" in node.running():
            node.remove_containers()
        node.stop("buildkitd")
        node.stop("containerd")  # its files on disk stay after the node
        os.kill(init.pid, signal.SIGKILL)
        wait_until(END_SECONDS, "the node's processes have ended", lambda: not init.alive)
    network.disconnect(settings)
    cgroups.remove(settings.name)
    _remove_folder(settings.volatile)
    settings.kubeconfig.unlink(missing_ok=True)
    for folder in _mount_points(settings):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    shutil.rmtree(settings.run, ignore_errors=True)


def _remove_folder(folder: Path) -> None:
    # The node's mounts are gone with its namespaces. Any other mount is not ours to empty.
    mounted = [
        line.split()[1]
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if line.split()[1].startswith(f"{folder}/")
    ]
    if mounted:
        raise NodeError(f"{', '.join(mounted)} is mounted below {folder}, which has to be removed. Unmount it first.")
    shutil.rmtree(folder, ignore_errors=True)


def _make_mount_points(settings: Settings, places: list[Path]) -> None:
    """Make the folders that the node mounts over. New ones are noted first, and removed with the node."""
    missing = [folder for place in places for folder in (place, *place.parents) if not folder.exists()]
    (settings.run / "mount-points").write_text("".join(f"{folder}\n" for folder in missing))
    for place in places:
        place.mkdir(parents=True, exist_ok=True)


def _mount_points(settings: Settings) -> list[Path]:
    note = settings.run / "mount-points"
    return [Path(line) for line in note.read_text().splitlines()] if note.exists() else []


def _give_to_caller(*paths: Path) -> None:
    """Under sudo, give the kubeconfig to the user who called it."""
    if "SUDO_UID" in os.environ:
        for path in paths:
            os.chown(path, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))


@contextmanager
def _lock(settings: Settings) -> Iterator[None]:
    """Allow one start or removal at a time. The abstract socket is free again when its holder ends in any way."""
    with socket.socket(socket.AF_UNIX) as lock:

        def taken() -> bool:
            try:
                lock.bind(f"\0{settings.name}-cluster")
            except OSError:
                return False
            return True

        wait_until(LOCK_SECONDS, f"no other `make cluster` of {settings.name} runs", taken)
        yield
