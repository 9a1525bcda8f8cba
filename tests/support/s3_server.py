"""A real S3 server for tests: versitygw over a folder, on a free port of the loopback interface."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.cluster.processes import find, free_ports, listens, running, until

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


@contextmanager
def s3_server(parent: Path | None = None) -> Iterator[S3Server]:
    """Run a server over a new folder under `parent` until the block ends.

    Raises:
        ToolMissingError: versitygw is not there.
    """
    with tempfile.TemporaryDirectory(prefix="s3-", dir=parent) as folder:
        root = Path(folder, "buckets")
        root.mkdir()
        (port,) = free_ports(1)
        keys = ["--access", ACCESS_KEY, "--secret", SECRET_KEY]
        command = [find("versitygw"), *keys, "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(root)]
        with running(command, Path(folder, "versitygw.log")) as process:
            until(STARTUP_SECONDS, "versitygw listens", lambda: listens(port), process)
            yield S3Server(f"http://127.0.0.1:{port}", root)
