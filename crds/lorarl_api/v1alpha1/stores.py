"""The places that a URI of a manifest may name, one row each.

To add an object store, add its row, and its client in `lorarl_trainer/storage/credentials.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Place:
    """A kind of place.

    Attributes:
        kind: a hub of models and data sets, an object store, a folder that pods or this machine have, or a server.
        pattern: of the whole URI, a regular expression.
        begins: how its URIs begin, for messages.
        folder: URIs of a folder there, for messages; empty if it has none.
        keys: names of the keys in a Secret that its client takes.
        usual_key: the one that a Secret has in most cases.
        identities: those of the keys that say who asks. Without any, the machine's role is used.
        unsigned: the one that lets requests go without keys; empty if there is none.
        endpoints: those of the keys that hold the server's address, the first of them wins.
        download: a command that downloads a folder; {uri}, {bucket}, {path}, {pattern} (all that is in the path) and
            {folder} are filled in.
    """

    kind: Literal["hub", "objects", "folder", "server"]
    pattern: str
    begins: tuple[str, ...]
    folder: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    usual_key: str = ""
    identities: tuple[str, ...] = ()
    unsigned: str = ""
    endpoints: tuple[str, ...] = ()
    download: str = ""


STORES: Mapping[str, Place] = {
    "hf": Place(
        "hub",
        r"hf://[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9_.-]+)?",
        ("hf://ORG/NAME",),
        keys=("HF_TOKEN",),
        usual_key="HF_TOKEN",
    ),
    "s3": Place(
        "objects",
        r"s3://[^/].*",
        ("s3://",),
        ("s3://BUCKET/FOLDER",),
        keys=(
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_REGION",
            "AWS_DEFAULT_REGION",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
            "AWS_SKIP_SIGNATURE",
        ),
        usual_key="AWS_ACCESS_KEY_ID",
        identities=("AWS_ACCESS_KEY_ID",),
        unsigned="AWS_SKIP_SIGNATURE",
        endpoints=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        download="aws s3 cp --recursive {uri} {folder}",
    ),
    "gs": Place(
        "objects",
        r"gs://[^/].*",
        ("gs://",),
        ("gs://BUCKET/FOLDER",),
        keys=(
            "GOOGLE_SERVICE_ACCOUNT",
            "GOOGLE_SERVICE_ACCOUNT_KEY",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_BASE_URL",
            "GOOGLE_SKIP_SIGNATURE",
        ),
        usual_key="GOOGLE_SERVICE_ACCOUNT_KEY",
        identities=("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
        unsigned="GOOGLE_SKIP_SIGNATURE",
        endpoints=("GOOGLE_BASE_URL",),
        download="gcloud storage rsync --recursive {uri} {folder}",
    ),
    "az": Place(
        "objects",
        r"az://[^/].*",
        ("az://",),
        ("az://CONTAINER/FOLDER",),
        keys=(
            "AZURE_STORAGE_ACCOUNT_NAME",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
            "AZURE_STORAGE_TOKEN",
            "AZURE_STORAGE_ENDPOINT",
            "AZURE_CLIENT_ID",
            "AZURE_CLIENT_SECRET",
            "AZURE_TENANT_ID",
            "AZURE_FEDERATED_TOKEN_FILE",
        ),
        usual_key="AZURE_STORAGE_ACCOUNT_KEY",
        identities=(
            "AZURE_STORAGE_ACCOUNT_KEY",
            "AZURE_STORAGE_SAS_TOKEN",
            "AZURE_STORAGE_TOKEN",
            "AZURE_CLIENT_SECRET",
            "AZURE_FEDERATED_TOKEN_FILE",
        ),
        endpoints=("AZURE_STORAGE_ENDPOINT",),
        # Blobs keep their path below the destination, so the last command moves the folder to its place.
        download="az storage blob download-batch --source {bucket} --pattern {pattern} --destination . "
        "&& mv {path} {folder}",
    ),
    "pvc": Place(
        "folder", r"pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/.*)?", ("pvc://CLAIM/PATH",), ("pvc://CLAIM/FOLDER",)
    ),
    # In file://FOLDER, FOLDER would be the name of a host. A ~ would be a folder of that name: no shell expands it.
    "file": Place(
        "folder",
        r"file:(/|///)?[^/~].*",
        ("file:///PATH", "file:PATH"),
        ("file:///FOLDER", "file:FOLDER"),
    ),
}
PLACES = {**STORES, "https": Place("server", r"https?://[^/].*", ("http(s)://HOST",))}
"""With servers, which store nothing."""


def _those(test: Callable[[Place], bool]) -> tuple[str, ...]:
    return tuple(scheme for scheme, place in STORES.items() if test(place))


HUBS = _those(lambda place: place.kind == "hub")
OBJECT_STORES = _those(lambda place: place.kind == "objects")
FOLDERS = _those(lambda place: place.kind == "folder")
WRITABLE = OBJECT_STORES + FOLDERS
"""Where lorarl may write."""
READABLE = HUBS + WRITABLE
