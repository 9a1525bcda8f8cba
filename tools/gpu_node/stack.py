"""The trainer's image, which does not travel: an image of links, into which pods mount the machine's own folders with Python and CUDA.

| variable | default | |
|---|---|---|
| LORARL_GPU_MOUNTS | /usr:/opt | folders of the machine that pods see at the same place, read-only |
| LORARL_GPU_PYTHONPATH | (none) | where pods' Python looks for packages, after ours |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import certifi

from gpu_node.places import PACKAGES, PREFIX
from node import images
from node.settings import REPOSITORY
from support.cluster.processes import CACHE

IMAGE = "localhost/lorarl-stack:1"
USER = "10001:10001"
"""As in the trainer's image."""
SHIMS = "/shims"
# What a Linux without its own /usr consists of.
LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
ACCOUNTS = {
    "etc/passwd": b"root:x:0:0::/root:/bin/sh\nlorarl:x:10001:10001::/tmp:/bin/sh\n",
    "etc/group": b"root:x:0:\nlorarl:x:10001:\n",
}
# What is told to programs of a machine by a file that pods must see as well: NCCL reads it.
SETTINGS_FILES = ("etc/nccl.conf",)
# What the caller's environment says of the stack holds in pods too.
PASSED_ON = ("LD_LIBRARY_PATH", "CUDA_HOME", "CC", "CXX", "HF_HUB_OFFLINE", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
PASSED_ON_PREFIXES = ("NCCL_", "NVSHMEM_", "TRITON_", "VLLM_")

Object = dict[str, Any]


@dataclass(frozen=True)
class Stack:
    """Where this machine has what the trainer needs.

    Attributes:
        python: The interpreter.
        mounts: Folders to mount.
        environment: Variables of the containers.
    """

    python: Path
    mounts: tuple[Path, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def from_environment(
    driver: Path | None, environment: Mapping[str, str] = os.environ, python: str = sys.executable
) -> Stack:
    """The stack that LORARL_GPU_* variables describe; `driver` is the folder of NVIDIA's libraries, where there are any."""
    # A link to the folder of a virtual environment is not in pods; the interpreter in it is a link too, and tells Python where it is.
    interpreter = Path(python).parent.resolve() / Path(python).name
    mounts = [Path(folder) for folder in (environment.get("LORARL_GPU_MOUNTS") or "/usr:/opt").split(":")]
    if not any(PACKAGES.is_relative_to(folder) for folder in mounts):
        mounts.append(PACKAGES)
    passed = {
        name: value for name, value in environment.items() if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
    }
    if driver:
        # There is no cache of the linker in the image: programs that look for the driver are told where it is.
        passed["LD_LIBRARY_PATH"] = ":".join(filter(None, (str(driver), passed.get("LD_LIBRARY_PATH"))))
        passed["TRITON_LIBCUDA_PATH"] = str(driver)
    packages = [str(PACKAGES), *filter(None, (environment.get("LORARL_GPU_PYTHONPATH", "")).split(":"))]
    programs = [SHIMS, str(interpreter.parent), "/usr/local/bin", "/usr/bin", "/bin"]
    # By their own names: cc and c++ are links into /etc.
    passed = {"CC": "gcc", "CXX": "g++"} | passed
    passed |= {
        "PATH": ":".join(programs),
        "PYTHONPATH": ":".join(packages),
        "HOME": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    passed["SSL_CERT_FILE"] = str(
        Path(certifi.where()).resolve()
    )  # of the stack: the client of object stores does not start without any
    return Stack(interpreter, tuple(mounts), passed)


def image(stack: Stack) -> bytes:
    """The image: links, and the programs by which KubeRay and the operator call Ray and the trainer."""
    calls = {"python": "", "lorarl": "-m lorarl_trainer.cli "}
    shims = {
        f"{SHIMS.strip('/')}/{name}": f'#!/bin/sh\nexec {stack.python} {what}"$@"\n'.encode()
        for name, what in calls.items()
    }
    shims[f"{SHIMS.strip('/')}/ray"] = (REPOSITORY / "trainer_image/ray").read_bytes()  # as in the trainer's image
    config = {
        "Env": [f"{name}={value}" for name, value in stack.environment.items()],
        "User": USER,
        "WorkingDir": "/tmp",
    }
    settings = {name: Path("/", name).read_bytes() for name in SETTINGS_FILES if Path("/", name).exists()}
    return images.archive(IMAGE, {**shims, **ACCOUNTS, **settings}, config, links=LINKS)


def changes(stack: Stack) -> Object:
    """What a manifest must say more for its pods to have the stack: dotted paths in its spec -> values."""
    volumes = [
        {"name": f"stack-{index}", "hostPath": {"path": str(folder)}} for index, folder in enumerate(stack.mounts)
    ]
    mounts = [
        {"name": f"stack-{index}", "mountPath": str(folder), "readOnly": True}
        for index, folder in enumerate(stack.mounts)
    ]
    overrides = {
        role: {"spec": {"containers": [{"name": f"ray-{role}", "volumeMounts": mounts}], "volumes": volumes}}
        for role in ("head", "worker")
    }
    # KubeRay's sidecar has the head's image but none of its volumes, and without them the image is empty.
    return {"cluster.submissionMode": "HTTPMode", "cluster.podTemplateOverrides": overrides}


def is_here() -> bool:
    """Whether env.sh was sourced on a machine that a node travelled to."""
    return PREFIX.is_dir() and CACHE == PREFIX
