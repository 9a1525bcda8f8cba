"""Builds images with BuildKit into containerd, where the kubelet finds them without a registry (`make images`).

Our images come from the Dockerfile at the root, as everyone builds them. Their base image is made of Debian and this
machine's Python, unless PYTHON_IMAGE names another. What did not change is not built again.
"""

from __future__ import annotations

import argparse
import configparser
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from node import lifecycle, prerequisites
from node.base_image import BaseImageError, make_root_file_system
from node.errors import NodeError, SettingsError
from node.settings import REPOSITORY, Settings, from_environment
from support.cluster.processes import CACHE, ToolMissingError, find

HERE = Path(__file__).parent
VERSION: str = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
# The full names that the kubelet looks for.
OPERATOR = f"docker.io/lorarl/operator:{VERSION}"
TRAINER = f"docker.io/lorarl/trainer:{VERSION}-cpu"
BASE = "localhost/python:3.12-slim-bookworm"
STORE = "localhost/versitygw:1"
LOCKS = {OPERATOR: "operator", TRAINER: "trainer-cpu"}

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_FILES = (Path("/etc/pip.conf"), Path.home() / ".pip/pip.conf", Path.home() / ".config/pip/pip.conf")


class BuildError(Exception):
    """An image could not be built. The text is the end of BuildKit's output."""


@dataclass(frozen=True)
class Image:
    """An image to build.

    Attributes:
        name: full name with registry and tag. Without one no image is kept, only the build cache.
        dockerfile: path of its Dockerfile.
        context: folder that the Dockerfile copies from.
        target: stage of the Dockerfile; empty for the last.
        arguments: build arguments.
    """

    name: str
    dockerfile: Path
    context: Path
    target: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


def tool_version(tool: str) -> str:
    """Return the version of a tool's Go module, which `scripts/tools.sh` wrote beside the binary.

    Raises:
        ToolMissingError: there is no such binary.
    """
    stamp = CACHE / "bin" / f"{tool}.stamp"
    if not stamp.exists():
        raise ToolMissingError(f"{stamp} does not exist. Run scripts/tools.sh {tool}.")
    return stamp.read_text().split("@")[1].split()[0]


def ours(python_image: str, revision: str) -> list[Image]:
    """Return the product's images: the operator, and the trainer for CPUs."""
    arguments = {"PYTHON_IMAGE": python_image, "VERSION": VERSION, "REVISION": revision}
    return [
        Image(OPERATOR, REPOSITORY / "Dockerfile", REPOSITORY, "operator", arguments),
        Image(TRAINER, REPOSITORY / "Dockerfile", REPOSITORY, "trainer", arguments | {"FLAVOUR": "cpu"}),
    ]


def kuberay_image() -> str:
    """Return the image that KubeRay's manifests name.

    Raises:
        ToolMissingError: it is not built yet.
    """
    return f"quay.io/kuberay/operator:{tool_version('ray-operator')}"


def others() -> list[Image]:
    """Return the images of programs that a cluster test installs, under the names of their releases.

    Raises:
        ToolMissingError: one of them is not built yet.
    """
    names = {
        "kuberay": kuberay_image(),
        "kueue": f"registry.k8s.io/kueue/kueue:{tool_version('kueue')}",
        "versitygw": STORE,
    }
    return [Image(name, HERE / "Dockerfile.tools", CACHE / "bin", target) for target, name in names.items()]


def package_index(environment: Mapping[str, str], pip_files: Iterable[Path] = PIP_FILES) -> str | None:
    """Return the package index that this machine is set to, or None for the usual one."""
    for variable in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if environment.get(variable):
            return environment[variable]
    found = configparser.ConfigParser(interpolation=None)
    found.read(pip_files)
    return found.get("global", "index-url", fallback=None)


@contextmanager
def secrets(environment: Mapping[str, str] = os.environ) -> Iterator[dict[str, Path]]:
    """Yield the files, by the id of their secret, that tell a build how this machine reaches the package index."""
    with TemporaryDirectory() as name:
        files: dict[str, Path] = {}
        authorities = Path(environment.get("SSL_CERT_FILE") or CERTIFICATES)
        if authorities.exists():
            files["ca"] = authorities
        if index := package_index(environment):
            files["pip.conf"], files["uv.toml"] = Path(name) / "pip.conf", Path(name) / "uv.toml"
            files["pip.conf"].write_text(f"[global]\nindex-url = {index}\n")
            files["uv.toml"].write_text(f'[[index]]\nurl = "{index}"\ndefault = true\n')
        yield files


def command(image: Image, socket: Path, secret_files: Mapping[str, Path]) -> list[str]:
    """Return the call of buildctl. When it has run, containerd has the image, unpacked."""
    options = {"filename": image.dockerfile.name, "target": image.target, "image-resolve-mode": "local"}
    options |= {f"build-arg:{name}": value for name, value in image.arguments.items()}
    return [
        *(find("buildctl"), "--addr", f"unix://{socket}", "build", "--progress=plain", "--frontend=dockerfile.v0"),
        *(f"--local=context={image.context}", f"--local=dockerfile={image.dockerfile.parent}"),
        *(f"--opt={name}={value}" for name, value in options.items() if value),
        *(f"--secret=id={name},src={path}" for name, path in secret_files.items()),
        # Compressing takes minutes, and these layers are neither pushed nor pulled.
        *([f"--output=type=image,name={image.name},unpack=true,compression=uncompressed"] if image.name else []),
    ]


def build(images: list[Image], socket: Path, logs: Path) -> dict[str, float]:
    """Build images in parallel and return the seconds that each took, by name. `logs` gets one file per image.

    Raises:
        BuildError: one could not be built.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with secrets() as secret_files, ThreadPoolExecutor(len(images)) as pool:
        seconds = pool.map(lambda image: _build(image, socket, log_of(image, logs), secret_files), images)
        return dict(zip([image.name for image in images], seconds, strict=True))


def log_of(image: Image, logs: Path) -> Path:
    """Return the file with BuildKit's output for this image."""
    return logs / f"build-{_short(image.name) or image.target}.log"


def _build(image: Image, socket: Path, log: Path, secret_files: Mapping[str, Path]) -> float:
    started = time.monotonic()
    with log.open("w") as output:
        ended = subprocess.run(
            command(image, socket, secret_files), stdout=output, stderr=subprocess.STDOUT, check=False
        )
    if ended.returncode != 0:
        raise BuildError(
            f"{image.name or image.target} could not be built ({log}):\n{log.read_text(errors='replace')[-3000:]}"
        )
    return time.monotonic() - started


def _short(name: str) -> str:
    return name.partition("/")[2].partition(":")[0].replace("/", "-")


def build_all(settings: Settings, python_image: str = "") -> dict[str, float]:
    """Build the base, our images and the others; return seconds by name. The node's builder must run.

    Args:
        settings: the node whose containerd gets them.
        python_image: the base of our images; empty makes one.

    Raises:
        BaseImageError, BuildError, ToolMissingError: one of them cannot be built. The text says why.
    """
    python_image, seconds = _base(settings, python_image)
    return seconds | build([*ours(python_image, revision()), *others()], settings.buildkit_socket, settings.logs)


def build_stage(
    settings: Settings, dockerfile: Path, target: str, arguments: Mapping[str, str], python_image: str = ""
) -> str:
    """Build a stage of a Dockerfile without keeping an image, as `build_all` does; return BuildKit's output."""
    python_image, _ = _base(settings, python_image)
    image = Image("", dockerfile, REPOSITORY, target, {"PYTHON_IMAGE": python_image, **arguments})
    build([image], settings.buildkit_socket, settings.logs)
    return log_of(image, settings.logs).read_text(errors="replace")


def build_operator(settings: Settings, python_image: str = "") -> None:
    """Build only the operator's image and its base, as `build_all` does."""
    python_image, _ = _base(settings, python_image)
    build(
        [image for image in ours(python_image, revision()) if image.name == OPERATOR],
        settings.buildkit_socket,
        settings.logs,
    )


def build_operator_of(tree: Path, name: str, settings: Settings, python_image: str = "") -> None:
    """Build the operator of another version under another name, from a work tree of that version."""
    python_image, _ = _base(settings, python_image)
    arguments = {"PYTHON_IMAGE": python_image, "VERSION": VERSION, "REVISION": name.rpartition(":")[2]}
    build([Image(name, tree / "Dockerfile", tree, "operator", arguments)], settings.buildkit_socket, settings.logs)


def _base(settings: Settings, python_image: str) -> tuple[str, dict[str, float]]:
    if python_image:
        return python_image, {}
    if settings.install and shutil.which("mmdebstrap") is None and prerequisites.can_install():
        prerequisites.install(["mmdebstrap"])
    folder = make_root_file_system(settings.data / "base").parent
    return BASE, build([Image(BASE, HERE / "Dockerfile.base", folder)], settings.buildkit_socket, settings.logs)


def write_bills_of_materials(folder: Path) -> None:
    """Write the bills of materials of our images, the same that the images contain: one file per image."""
    for name, lock in LOCKS.items():
        image = name.removeprefix("docker.io/").partition(":")[0]
        script = [sys.executable, str(REPOSITORY / "scripts/sbom.py"), f"requirements/{lock}.lock", "--image", image]
        subprocess.run([*script, "--output", str(folder / f"{_short(name)}.cdx.json")], cwd=REPOSITORY, check=True)


def revision() -> str:
    """Return the commit that is checked out, or `unknown`."""
    git = shutil.which("git")
    answer = (
        git
        and subprocess.run(
            [git, "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    return answer or "unknown"


def main() -> None:
    """Build all images; start the builder unless it runs."""
    parser = argparse.ArgumentParser(
        prog="make images", description="Build the images into the containerd of `make cluster`."
    )
    parser.add_argument(
        "--python-image", default=os.environ.get("PYTHON_IMAGE", ""), help="base of our images (default: make one)"
    )
    python_image = parser.parse_args().python_image
    try:
        settings = from_environment()
        lifecycle.builder(settings, _say)
        for name, seconds in build_all(settings, python_image).items():
            _say(f"{name}: {seconds:.1f} s")
    except (BaseImageError, BuildError, NodeError, SettingsError, ToolMissingError) as error:
        _say(str(error))
        sys.exit(1)
    write_bills_of_materials(settings.out.parent / "images")


def _say(text: str) -> None:
    print(f"images: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
