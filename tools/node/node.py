"""A node that exists: its programs, which can be started and stopped one by one, and its image store."""

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
# How pulls and builds go through a proxy. The other programs only talk to each other.
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
        """The process that holds the node's namespaces, or None if it is not alive."""
        init = namespaces.read_record(self.settings.run / "init")
        return init if init is not None and init.alive else None

    def must_be_there(self) -> namespaces.Init:
        """Return the process that holds the node's namespaces.

        Raises:
            NodeError: there is none.
        """
        init = self.init
        if init is None:
            raise NodeError("there is no node. Run `make cluster`.")
        return init

    def log(self, name: str) -> Path:
        """Return the file of a program's output."""
        return self.settings.logs / f"{name}.log"

    def running(self) -> dict[str, int]:
        """Return the programs of the node that run -> process id on the host."""
        init = self.init
        names = {self._tools[name]: name for name in self.programs}
        processes = init.processes() if init else {}
        return {names[command[0]]: pid for pid, command in processes.items() if command and command[0] in names}

    def start(self, *names: str) -> None:
        """Start programs that do not run.

        Raises:
            NodeError: there is no node, or a program is not the node's, or ended at once. The text has the end of its
                log.
        """
        init = self.must_be_there()
        self.settings.logs.mkdir(parents=True, exist_ok=True)  # another checkout may have started the node
        for name in names:
            if name not in self.programs:
                raise NodeError(f"this node has no {name}; it has {', '.join(self.programs)}")
            if name in self.running():
                continue
            # The shell ends at once, so that the node's first process becomes the program's parent, and reaps it.
            shell = ["sh", "-c", '"$@" </dev/null >>"$0" 2>&1 &', str(self.log(name)), *self._commands[name]]
            subprocess.run(init.enter(shell), env=self._environment(name), start_new_session=True, check=True)
        self._must_run(names, START_SECONDS)

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End a program, with SIGKILL if it does not end in time; do nothing if it does not run."""
        pid = self.running().get(name)
        if pid is None:
            return
        before = namespaces.read_stat(pid)

        def is_gone() -> bool:
            # Reaped, not only without a command line: a thread that is still ending may hold the program's port.
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
        """Return when `probe` holds. The programs `needed` must run until then.

        Raises:
            NodeError: it did not hold in time, or a program ended.
        """

        def probe_while_they_run() -> object:
            if ended := [name for name in needed if name not in self.running()]:
                raise NodeError(self._post_mortem(ended))
            return probe()

        wait_until(READY_SECONDS, what, probe_while_they_run)

    def get(self, path: str) -> Any:
        """Return the API server's answer to the administrator, or None without a successful answer."""
        pki, address = self.settings.pki, str(self.settings.node_address)
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        text = _http_get(http.client.HTTPSConnection(address, 6443, timeout=5, context=context), path)
        return json.loads(text) if text and text.startswith("{") else text

    def answers(self, port: int, path: str) -> bool:
        """Return whether a program's own probe reports that it is ready."""
        return _http_get(http.client.HTTPConnection(str(self.settings.node_address), port, timeout=2), path) is not None

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator and return its output."""
        command = [self._tools["kubectl"], f"--kubeconfig={self.settings.kubeconfig}", *arguments]
        return _must(command, (stdin or "").encode())

    def ctr(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run containerd's own client, in the namespace of kubelet's images and containers; return its output.

        It runs inside the node because it makes files in /run/containerd.

        Raises:
            NodeError: there is no node, or the client failed.
        """
        return _must(self.ctr_command(*arguments), stdin)

    def ctr_command(self, *arguments: str) -> list[str]:
        """Return the command line of `ctr`."""
        command = [self._tools["ctr"], f"--address={CONTAINERD_ADDRESS}", f"--namespace={IMAGE_NAMESPACE}", *arguments]
        return self.must_be_there().enter(command)

    def load(self, archive: bytes) -> None:
        """Put an image into the node's store. `archive` comes from `images` or `docker save`."""
        self.ctr("images", "import", "--local", "-", stdin=archive)

    def load_pause(self) -> None:
        """Put the image of pods' first container into the store."""
        self.load(images.of_program(PAUSE_IMAGE, Path(self._tools["pause"])))

    def remove_containers(self) -> None:
        """End all containers and free their disk, as far as containerd allows."""
        try:
            for kind, force in (("tasks", ["--force"]), ("containers", [])):
                if ids := self.ctr(kind, "list", "--quiet").split():
                    self.ctr(kind, "delete", *force, *ids)
        except NodeError:
            return  # containerd is gone or stuck. kubelet removes them when the node comes back

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
        NodeError: it did not hold within `seconds`.
    """
    try:
        until(seconds, what, probe)
    except AssertionError as error:
        raise NodeError(str(error)) from None


def _path_of(tool: str) -> str:
    try:
        return find(tool)
    except ToolMissingError:
        return tool  # a node can be taken down without it; `check` asks for it before one is brought up


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
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=READY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NodeError(f"{' '.join(command)}: did not end within {READY_SECONDS:g} s") from None
    if done.returncode:
        raise NodeError(f"{' '.join(command)}: {done.stderr.decode().strip()}")
    return done.stdout.decode()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else "(nothing)"
