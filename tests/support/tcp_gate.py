"""A gate between a client and a server on loopback. While it is shut, connections are cut and new ones refused."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from support.cluster.control_plane import Cluster


class TcpGate:
    """Passes bytes on from its own port to `port`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = True
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut()
        self._listener.close()

    def shut(self) -> None:
        """Cut every connection; new connections are refused."""
        with self._lock:
            self._open = False
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def open(self) -> None:
        with self._lock:
            self._open = True

    def kubeconfig(self, cluster: Cluster, token: str) -> Path:
        """A kubeconfig by which a token's holder reaches the API server through the gate."""
        path = cluster.write_kubeconfig("gate", token)
        content = json.loads(path.read_text())
        content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self.port}"
        path.write_text(json.dumps(content))
        return path

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    if not self._open:
                        client.close()
                        continue
                    server = socket.create_connection(("127.0.0.1", self._target))
                    self._connections |= {client, server}
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._connections.discard(end)
