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
    """Return an image whose entrypoint is one static program.

    Args:
        image: its name.
        program: the program on this machine.
        name: the program's name in the image; empty for the same.
        user: who runs it; empty for root.
    """
    name = name or program.name
    return archive(image, {name: program.read_bytes()}, {"Entrypoint": [f"/{name}"], "User": user})


def archive(
    image: str, files: Mapping[str, bytes], config: Mapping[str, Any], *, links: Mapping[str, str] | None = None
) -> bytes:
    """Return an image as `docker save` would write it. The same input gives the same bytes.

    Args:
        image: its name.
        files: path -> content; all are executable. Folders are made as needed.
        config: how its containers run, as in the image specification: Entrypoint, Env, User.
        links: path -> target of a symbolic link.
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
