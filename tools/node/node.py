"""A node that is there: its programs, started and stopped one by one, and its image store."""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from node import images, namespaces, prerequisites, programs
from node.configuration import CONTAINERD_ADDRESS, IMAGE_NAMESPACE, PAUSE_IMAGE
from node.errors import NodeError
from node.settings import Settings
from support.cluster.processes import ToolMissingError, find, until

START_SECONDS = 10.0
READY_SECONDS = 60.0
STOP_SECONDS = 10.0
# How pulls and builds reach the world where there is a proxy. The other programs talk to each other alone.
PROXY_VARIABLES = (
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)


class Node:
    """The node of some settings, whether it runs or not."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.programs = programs.of(settings)
        self._tools = {name: _path_of(name) for name in (*self.programs, *programs.HELPERS)}
        self._commands = programs.commands(settings, self._tools)

    @property
    def init(self) -> namespaces.Init | None:
        """The process that holds the node's namespaces, or None when it is not alive."""
        init = namespaces.read_record(self.settings.run / "init")
        return init if init is not None and init.alive else None

    def must_be_there(self) -> namespaces.Init:
        """The process that holds the node's namespaces.

        Raises:
            NodeError: There is none.
        """
        init = self.init
        if init is None:
            raise NodeError("there is no node; `make cluster` brings one up")
        return init

    def log(self, name: str) -> Path:
        """Where a program's output goes."""
        return self.settings.logs / f"{name}.log"

    def running(self) -> dict[str, int]:
        """Those of the node's programs that run -> process id on the host."""
        init = self.init
        names = {self._tools[name]: name for name in self.programs}
        processes = init.processes() if init else {}
        return {names[command[0]]: pid for pid, command in processes.items() if command and command[0] in names}

    def start(self, *names: str) -> None:
        """Start programs that do not run.

        Raises:
            NodeError: There is no node, or one is not among its programs, or ended at once; the text has the end of its log.
        """
        init = self.must_be_there()
        self.settings.logs.mkdir(parents=True, exist_ok=True)  # another checkout may have begun the node
        for name in names:
            if name not in self.programs:
                raise NodeError(f"this node has no {name}; it has {', '.join(self.programs)}")
            if name in self.running():
                continue
            # The shell ends at once, so that the program becomes a child of the node's first process, which will reap it.
            shell = ["sh", "-c", '"$@" </dev/null >>"$0" 2>&1 &', str(self.log(name)), *self._commands[name]]
            subprocess.run(init.enter(shell), env=self._environment(name), start_new_session=True, check=True)
        self._must_run(names, START_SECONDS)

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a program, at once when it does not end by itself; nothing when it does not run."""
        pid = self.running().get(name)
        if pid is None:
            return
        before = namespaces.read_stat(pid)

        def is_gone() -> bool:
            # Reaped, and not just without a command line: a thread that is still ending may hold the program's port.
            now = namespaces.read_stat(pid)
            return before is None or now is None or now[namespaces.START_TIME] != before[namespaces.START_TIME]

        with suppress(ProcessLookupError):
            os.kill(pid, how)
        try:
            wait_until(STOP_SECONDS, f"{name} has ended", is_gone)
        except NodeError:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(STOP_SECONDS, f"{name} was killed", is_gone)

    def wait(self, what: str, probe: Callable[[], object], *needed: str) -> None:
        """Return when `probe` holds; the programs `needed` must live that long.

        Raises:
            NodeError: It did not hold in time, or a program ended.
        """

        def probe_while_they_run() -> object:
            if ended := [name for name in needed if name not in self.running()]:
                raise NodeError(self._post_mortem(ended))
            return probe()

        wait_until(READY_SECONDS, what, probe_while_they_run)

    def get(self, path: str) -> Any:
        """An answer of the API server to the administrator, or None when there is none or no success."""
        pki, address = self.settings.pki, str(self.settings.node_address)
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        text = _http_get(http.client.HTTPSConnection(address, 6443, timeout=5, context=context), path)
        return json.loads(text) if text and text.startswith("{") else text

    def answers(self, port: int, path: str) -> bool:
        """Whether a program's own probe says that it is ready."""
        return _http_get(http.client.HTTPConnection(str(self.settings.node_address), port, timeout=2), path) is not None

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator; what it printed."""
        command = [self._tools["kubectl"], f"--kubeconfig={self.settings.kubeconfig}", *arguments]
        return _must(command, (stdin or "").encode())

    def ctr(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run containerd's own client, in the namespace of kubelet's images and containers; what it printed.

        Inside the node: it makes files in /run/containerd.

        Raises:
            NodeError: There is no node, or the client failed.
        """
        command = [self._tools["ctr"], f"--address={CONTAINERD_ADDRESS}", f"--namespace={IMAGE_NAMESPACE}", *arguments]
        return _must(self.must_be_there().enter(command), stdin)

    def load(self, archive: bytes) -> None:
        """Put an image into the node's store; `archive` is as of `images`, or of `docker save`."""
        self.ctr("images", "import", "--local", "-", stdin=archive)

    def load_pause(self) -> None:
        """Put the image of pods' first container into the store."""
        self.load(images.of_program(PAUSE_IMAGE, Path(self._tools["pause"])))

    def remove_containers(self) -> None:
        """End all containers and give their disk back, as far as containerd lets us."""
        try:
            for kind, force in (("tasks", ["--force"]), ("containers", [])):
                if ids := self.ctr(kind, "list", "--quiet").split():
                    self.ctr(kind, "delete", *force, *ids)
        except NodeError:
            return  # containerd is gone or stuck. kubelet's own collection finds them when the node comes back

    def _environment(self, name: str) -> dict[str, str]:
        shim_folder = str(Path(self._tools["containerd-shim-runc-v2"]).parent)
        environment = {
            "PATH": f"{shim_folder}:{prerequisites.search_path()}",
            "HOME": "/root",
            "TMPDIR": str(self.settings.volatile / "tmp"),
        }
        if name == programs.DEVICE_PLUGIN:
            environment["LD_LIBRARY_PATH"] = str(self.settings.driver)
        if name in programs.BUILDER:
            environment |= {key: os.environ[key] for key in PROXY_VARIABLES if key in os.environ}
        return environment

    def _must_run(self, names: Iterable[str], seconds: float) -> None:
        wanted = set(names)
        try:
            wait_until(seconds, f"{', '.join(wanted)} started", lambda: wanted <= self.running().keys())
        except NodeError:
            raise NodeError(self._post_mortem(sorted(wanted - self.running().keys()))) from None

    def _post_mortem(self, names: Iterable[str]) -> str:
        return "\n".join(f"{name} ended. The end of {self.log(name)}:\n{_tail(self.log(name))}" for name in names)


def wait_until(seconds: float, what: str, probe: Callable[[], object]) -> None:
    """Return when `probe` holds.

    Raises:
        NodeError: It did not hold within `seconds`.
    """
    try:
        until(seconds, what, probe)
    except AssertionError as error:
        raise NodeError(str(error)) from None


def _path_of(tool: str) -> str:
    try:
        return find(tool)
    except ToolMissingError:
        return tool  # a node can be taken down without it; before one is brought up, it is asked for


def _http_get(connection: http.client.HTTPConnection, path: str) -> str | None:
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        return text if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _must(command: list[str], stdin: bytes) -> str:
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=READY_SECONDS)
    except subprocess.TimeoutExpired:
        raise NodeError(f"{' '.join(command)}: no end after {READY_SECONDS:g} s") from None
    if done.returncode:
        raise NodeError(f"{' '.join(command)}: {done.stderr.decode().strip()}")
    return done.stdout.decode()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else "(nothing)"
