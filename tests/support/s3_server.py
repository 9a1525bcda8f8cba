"""A real S3 server for tests: versitygw over a folder, on a free port of the loopback interface."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret"
STARTUP_SECONDS = 20.0


@dataclass(frozen=True)
class S3Server:
    """A running server. A folder directly under `root` is a bucket."""

    url: str
    root: Path

    def make_bucket(self, name: str) -> str:
        (self.root / name).mkdir(parents=True)
        return name

    def secret(self, url: str | None = None, **changes: str) -> dict[str, str]:
        """What a Secret for this server holds; `url` when there is a proxy in front of it."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url or self.url,
            **changes,
        }


def find_versitygw() -> Path | None:
    """The server's binary: in $LORARL_CACHE/bin (default ~/.cache/lorarl/bin), else on the PATH."""
    cached = Path(os.environ.get("LORARL_CACHE") or Path.home() / ".cache" / "lorarl") / "bin" / "versitygw"
    if cached.is_file():
        return cached
    found = shutil.which("versitygw")
    return Path(found) if found else None


@contextmanager
def s3_server(binary: Path, parent: Path | None = None) -> Iterator[S3Server]:
    """Run `binary` over a new folder under `parent` until the block ends."""
    with tempfile.TemporaryDirectory(prefix="s3-", dir=parent) as folder:
        root = Path(folder, "buckets")
        root.mkdir()
        log = Path(folder, "log")
        port = _free_port()
        command = [
            str(binary),
            "--access",
            ACCESS_KEY,
            "--secret",
            SECRET_KEY,
            "--port",
            f"127.0.0.1:{port}",
            "--quiet",
            "posix",
            str(root),
        ]
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
            try:
                _wait_until_it_answers(process, port, log)
                yield S3Server(f"http://127.0.0.1:{port}", root)
            finally:
                process.kill()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"versitygw did not listen on port {port}: {log.read_text()}")
