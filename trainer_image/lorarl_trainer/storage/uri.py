"""Storage URIs: how to parse them, and how to show them without their secrets."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from lorarl_api.v1alpha1 import CLAIMS_FOLDER
from lorarl_api.v1alpha1.stores import STORES, WRITABLE
from lorarl_trainer.errors import InputError

_FORMS = [form for place in STORES.values() for form in place.folder]
EXPECTED = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"


@dataclass(frozen=True)
class StoreUri:
    """A parsed URI.

    Attributes:
        scheme: s3, gs, az, pvc or file.
        bucket: bucket, container or claim; empty for file.
        path: folder in the bucket, without slashes at its ends; for pvc and file the absolute path.
        text: the URI without secrets, for messages.
    """

    scheme: str
    bucket: str
    path: str
    text: str


def redact(uri: str) -> str:
    """Return the URI without user, password, query (signatures, SAS tokens) and fragment."""
    without_query = re.split(r"[?#]", uri, maxsplit=1)[0]
    return re.sub(r"^([a-z0-9+.-]+://)[^/]*@", r"\1", without_query, flags=re.IGNORECASE)


def parse_uri(uri: str, field: str = "uri") -> StoreUri:
    """Parse a storage URI. A relative file: URI is resolved against the working directory.

    Raises:
        InputError: it has none of the known forms. The message contains no secrets.
    """
    scheme, separator, rest = uri.partition(":")
    if not separator or scheme not in WRITABLE:
        raise InputError(field, redact(uri), EXPECTED, "Write the URI in one of these forms.")
    if scheme == "file":
        return _parse_file(uri, rest, field)
    if redact(uri) != uri:
        hint = "Remove user, password and query from the URI. Put credentials into a Secret named by credentialsSecret."
        raise InputError(field, f"{redact(uri)} with a user, a password or a query in it", EXPECTED, hint)
    bucket, _, path = rest.removeprefix("//").partition("/")
    path = path.strip("/")
    if not rest.startswith("//") or not bucket:
        raise InputError(field, uri, EXPECTED, "Name the bucket after the two slashes.")
    if any(part in ("", ".", "..") for part in path.split("/") if path):
        raise InputError(
            field,
            uri,
            "a folder without empty parts, . or ..",
            f"Write {scheme}://{bucket}/ followed by plain names between slashes.",
        )
    text = f"{scheme}://{bucket}/{path}".rstrip("/")
    if scheme == "pvc":
        return StoreUri(scheme, bucket, str(claim_folder(uri, bucket, field) / path), text)
    return StoreUri(scheme, bucket, path, text)


def claim_folder(uri: str, claim: str, field: str) -> Path:
    """Return where lorarl's pods mount a PersistentVolumeClaim. Raises InputError if it is not mounted here."""
    mounted = Path(CLAIMS_FOLDER) / claim
    if not mounted.is_dir():
        hint = "Outside a cluster, name a folder on this machine: file:PATH."
        raise InputError(field, f"{uri}, which is not mounted", f"a PersistentVolumeClaim mounted at {mounted}", hint)
    return mounted


def _parse_file(uri: str, rest: str, field: str) -> StoreUri:
    if rest.startswith("//") and not rest.startswith("///"):
        relative = rest.removeprefix("//")
        hint = (
            f"Write file:{relative} for a folder relative to the working directory, or file:///... for an absolute one."
        )
        raise InputError(
            field, uri, "three slashes before an absolute folder, or no slashes before a relative one", hint
        )
    if not rest or rest == "///":
        raise InputError(field, uri, EXPECTED, "Name a folder.")
    path = Path(os.path.normpath(Path.cwd() / (rest.removeprefix("//"))))
    return StoreUri("file", "", str(path), f"file://{path}")
