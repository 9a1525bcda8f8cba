"""Container images of one static program each, made without a registry or a builder: a tar archive that containerd imports."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def archive(image: str, program: Path, *, user: str = "") -> bytes:
    """An image as `docker save` would write it, with one file: the program, its entrypoint. The same input gives the same bytes."""
    layer = _tar({program.name: program.read_bytes()})
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": user},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    return _tar({"manifest.json": _json(manifest), "config.json": _json(config), "layer.tar": layer})


def _json(content: object) -> bytes:
    return json.dumps(content).encode()


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
