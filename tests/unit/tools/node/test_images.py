"""An image of one program, without a builder."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from node.images import archive, of_program


def test_the_program_is_the_entrypoint_of_its_image(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"\x7fELF...")
    made = of_program("localhost/pause:1", program, user="65532")
    with tarfile.open(fileobj=io.BytesIO(made)) as image:
        (manifest,) = json.load(_file(image, "manifest.json"))
        config = json.load(_file(image, manifest["Config"]))
        layer = _file(image, manifest["Layers"][0]).read()
    assert manifest["RepoTags"] == ["localhost/pause:1"]
    assert config["config"] == {"Entrypoint": ["/pause"], "User": "65532"}
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        (entry,) = files.getmembers()
        assert (entry.name, entry.mode) == ("pause", 0o755)
    assert of_program("localhost/pause:1", program, user="65532") == made, "the same input gives the same bytes"


def test_an_image_of_links_stands_for_a_machines_own_folders() -> None:
    made = archive("localhost/stack:1", {"shims/ray": b"#!/bin/sh\n"}, {"User": "10001"}, links={"lib64": "usr/lib64"})
    with tarfile.open(fileobj=io.BytesIO(made)) as image, tarfile.open(fileobj=_file(image, "layer.tar")) as files:
        assert {entry.name: entry.linkname for entry in files} == {"shims/ray": "", "lib64": "usr/lib64"}


def _file(image: tarfile.TarFile, name: str) -> io.BufferedReader:
    file = image.extractfile(name)
    assert isinstance(file, io.BufferedReader)
    return file
