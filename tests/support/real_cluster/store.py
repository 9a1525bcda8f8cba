"""The S3 server of the tests as this machine reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.store import S3Store

from node.installation import STORE, STORE_KEYS, forwarded
from support.cluster.kubectl import RealCluster

BUCKET = "lorarl"


class Bucket:
    """The bucket `lorarl` behind an address of this machine."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = S3Store(
            BUCKET,
            endpoint=url,
            access_key_id=STORE_KEYS["AWS_ACCESS_KEY_ID"],
            secret_access_key=STORE_KEYS["AWS_SECRET_ACCESS_KEY"],
            region=STORE_KEYS["AWS_REGION"],
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def names(self, prefix: str) -> list[str]:
        """The names of the objects under a prefix."""
        return [one["path"] for batch in obstore.list(self._store, prefix) for one in batch]

    def clear(self, prefix: str) -> None:
        """Remove all objects under a prefix."""
        obstore.delete(self._store, self.names(prefix))

    def read(self, uri: str) -> str:
        """The text of the object behind `s3://lorarl/...`."""
        return bytes(obstore.get(self._store, uri.removeprefix(f"s3://{BUCKET}/")).bytes()).decode()

    def download(self, uri: str, folder: Path) -> Path:
        """Copy the folder behind `s3://lorarl/...` to `folder`."""
        folder.mkdir(parents=True)
        prefix = uri.removeprefix(f"s3://{BUCKET}/").rstrip("/") + "/"
        for name in self.names(prefix):
            (folder / name.removeprefix(prefix)).write_bytes(bytes(obstore.get(self._store, name).bytes()))
        return folder


@contextmanager
def bucket_of(cluster: RealCluster, out: Path) -> Iterator[Bucket]:
    """The bucket of a cluster's S3 server until the block ends, by `kubectl port-forward`, whose log goes to `out`."""
    with forwarded(cluster, STORE, "service/s3", 7070, out / "forward-s3.log") as address:
        yield Bucket(f"http://{address}")
