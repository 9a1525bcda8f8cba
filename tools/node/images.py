"""Container images of a few files, made without a registry or a builder: a tar archive that containerd imports."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def of_program(image: str, program: Path, *, name: str = "", user: str = "") -> bytes:
    """An image of one static program, its entrypoint.

    Args:
        image: Its name.
        program: The program here.
        name: What it is called in the image; as here when empty.
        user: Who it runs as; root when empty.
    """
    name = name or program.name
    return archive(image, {name: program.read_bytes()}, {"Entrypoint": [f"/{name}"], "User": user})


def archive(
    image: str, files: Mapping[str, bytes], config: Mapping[str, Any], *, links: Mapping[str, str] | None = None
) -> bytes:
    """An image as `docker save` would write it. The same input gives the same bytes.

    Args:
        image: Its name.
        files: Path -> content, all executable. Folders come by themselves.
        config: How containers of it run, as in the image specification: Entrypoint, Env, User.
        links: Path -> what a symbolic link there points to.
    """
    layer = _tar(files, links or {})
    whole = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    return _tar({"manifest.json": _json(manifest), "config.json": _json(whole), "layer.tar": layer}, {})


def _json(content: object) -> bytes:
    return json.dumps(content).encode()


def _tar(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return buffer.getvalue()
