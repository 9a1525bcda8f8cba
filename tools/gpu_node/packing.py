"""Packs a node into parts that travel.

A part has the tools of scripts/tools.sh, programs of this machine with their libraries, and the operator's image. The
machine that it goes to needs a Linux of the same architecture, with a C library as new as this machine's. It needs no
package manager, no network, and no root file system of ours.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from gpu_node.places import PARTS, PREFIX
from node import builds, lifecycle, prerequisites, programs
from node.errors import NodeError
from node.node import Node
from node.settings import REPOSITORY, Settings
from support.cluster.processes import CACHE, find, find_share

PART_MIB = 50
# What a bare machine lacks. Every Linux has `mount`, `nsenter` and `xz`.
MACHINE_PROGRAMS = ("ip", "nft", "openssl", "runc")
# What is installed in the cluster, and helm, which installs it.
CLUSTER_PROGRAMS = ("ray-operator", "versitygw", "helm")
# Never packed: they belong to the kernel, or must be the ones that the machine's other programs use.
C_LIBRARY = re.compile(r"linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|resolv)\.so")
PUT = f"""#!/usr/bin/env bash
# Puts this part where the others are. env.sh of the checkout joins them.
mkdir -p {PARTS} && cp "$(dirname "$0")"/part.* {PARTS}/
"""


def pack(settings: Settings, out: Path, say: lifecycle.Say) -> list[Path]:
    """Pack a node like that of `settings`; return the folders of its parts, `00` and so on, in `out`.

    Raises:
        BaseImageError, BuildError: the operator's image cannot be built.
        NodeError: the builder does not start, or a program cannot be packed.
        ToolMissingError: scripts/tools.sh has not built a program yet.
    """
    tree = settings.data / "gpu-node"
    shutil.rmtree(tree, ignore_errors=True)
    for folder in ("bin", "lib", "cni", "share", "images"):
        (tree / folder).mkdir(parents=True)
    try:
        _copy_tools(settings, tree)
        _copy_machine_programs(tree, say)
        _copy_operator_image(settings, tree, say)
        return _split(tree, out)
    finally:
        shutil.rmtree(tree)


def travelling(settings: Settings) -> Settings:
    """Return the node as it will be: with GPUs, and without BuildKit."""
    return dataclasses.replace(settings, builds=False, driver=Path("/"))


def _copy_tools(settings: Settings, tree: Path) -> None:
    for name in (*programs.of(travelling(settings)), *programs.HELPERS, *CLUSTER_PROGRAMS):
        shutil.copy2(find(name), tree / "bin" / name)
        stamp = CACHE / "bin" / f"{name}.stamp"
        if stamp.exists():
            shutil.copy2(stamp, tree / "bin")
    shutil.copytree(find_share("ray-operator"), tree / "share/ray-operator")


def _copy_machine_programs(tree: Path, say: lifecycle.Say) -> None:
    """Copy this machine's programs, and write into each where its libraries will be."""
    packages = [
        prerequisites.COMMANDS.get(name, name)
        for name in ("patchelf", *MACHINE_PROGRAMS)
        if shutil.which(name, path=prerequisites.search_path()) is None
    ]
    if prerequisites.cni_folder() is None:
        packages.append(prerequisites.CNI_PACKAGE)
    if packages and prerequisites.can_install():
        say(f"installing {' '.join(packages)}")
        prerequisites.install(packages)
    found = {name: shutil.which(name, path=prerequisites.search_path()) for name in MACHINE_PROGRAMS}
    plugins = prerequisites.cni_folder()
    if plugins is None or None in found.values() or shutil.which("patchelf") is None:
        raise NodeError(
            f"not all of patchelf, {', '.join(MACHINE_PROGRAMS)} and the CNI plugins are installed. "
            "Run `python -m node check` for more."
        )
    for name, path in found.items():
        carried = tree / "bin" / name
        shutil.copy2(str(path), carried)
        for library in libraries(_output(["ldd", str(path)])):
            _copy_library(library, tree / "lib")
        _find_libraries_in_prefix(carried)
    for name in prerequisites.CNI_PLUGINS:
        shutil.copy2(Path(plugins, name), tree / "cni")


def libraries(ldd: str) -> list[Path]:
    """Return the libraries to pack, from the output of `ldd` for a program."""
    found = re.findall(r"^\s+\S+ => (\S+) \(", ldd, re.MULTILINE)
    return [Path(path) for path in found if not C_LIBRARY.search(Path(path).name)]


def _copy_library(library: Path, folder: Path) -> None:
    carried = folder / library.name
    if not carried.exists():
        shutil.copy2(library, carried)  # the target of the link, under the name that programs ask for
        _find_libraries_in_prefix(carried)


def _find_libraries_in_prefix(program: Path) -> None:
    # An absolute path, because runc runs itself from a copy in memory.
    _output(["patchelf", "--force-rpath", "--set-rpath", str(PREFIX / "lib"), str(program)])


def _copy_operator_image(settings: Settings, tree: Path, say: lifecycle.Say) -> None:
    lifecycle.builder(settings, say)
    builds.build_operator(settings)
    archive = tree / "images/operator.tar"
    Node(settings).ctr("images", "export", str(archive), builds.OPERATOR)


def _split(tree: Path, out: Path) -> list[Path]:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    # In blocks that can be unpacked in parallel. The filter for machine code saves a part. A higher preset would take
    # minutes longer.
    compress = 'tar --directory="$0" --owner=0 --group=0 --create . | xz -T0 --x86 --lzma2=preset=1'
    pipeline = f'{compress} | split --numeric-suffixes --bytes={PART_MIB}MiB - "$1"/part.'
    _output(["bash", "-o", "pipefail", "-c", pipeline, str(tree), str(out)])
    parts = sorted(out.glob("part.*"))
    return [_folder_of(part, len(parts)) for part in parts]


def _folder_of(part: Path, count: int) -> Path:
    folder = part.parent / part.suffix.removeprefix(".")
    folder.mkdir()
    part.rename(folder / f"{part.name}-of-{count}")
    (folder / "put.sh").write_text(PUT)
    return folder


def sizes(folders: Iterable[Path]) -> str:
    """Say how much was packed."""
    mib = [sum(file.stat().st_size for file in folder.iterdir()) / 2**20 for folder in folders]
    return f"{len(mib)} parts, {sum(mib):.0f} MiB in all, {max(mib):.0f} MiB the largest"


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    if done.returncode:
        raise NodeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
