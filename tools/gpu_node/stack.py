"""The trainer's image, which does not travel: it has only links. Pods mount the machine's folders with Python and CUDA.

| variable | default | |
|---|---|---|
| LORARL_GPU_MOUNTS | /usr:/opt | folders of the machine that pods mount at the same place, read-only |
| LORARL_GPU_PYTHONPATH | (none) | where Python in pods looks for packages, after ours |
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
"""The same as in the trainer's image."""
SHIMS = "/shims"
# The links of a Linux with a merged /usr.
LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
ACCOUNTS = {
    "etc/passwd": b"root:x:0:0::/root:/bin/sh\nlorarl:x:10001:10001::/tmp:/bin/sh\n",
    "etc/group": b"root:x:0:\nlorarl:x:10001:\n",
}
# Settings of the machine that pods need too: NCCL reads this file.
SETTINGS_FILES = ("etc/nccl.conf",)
# Variables of the caller that describe the stack, which pods get too.
PASSED_ON = ("LD_LIBRARY_PATH", "CUDA_HOME", "CC", "CXX", "HF_HUB_OFFLINE", "TORCH_SYMM_MEM_DISABLE_MULTICAST")
PASSED_ON_PREFIXES = ("NCCL_", "NVSHMEM_", "TRITON_", "VLLM_")

Object = dict[str, Any]


@dataclass(frozen=True)
class Stack:
    """Where this machine has what the trainer needs.

    Attributes:
        python: the interpreter.
        mounts: folders to mount.
        environment: variables of the containers.
    """

    python: Path
    mounts: tuple[Path, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def from_environment(
    driver: Path | None, environment: Mapping[str, str] = os.environ, python: str = sys.executable
) -> Stack:
    """Return the stack that LORARL_GPU_* variables describe. `driver` is the folder of NVIDIA's libraries, if any."""
    # A link to the folder of a virtual environment does not exist in pods. The interpreter in the folder is a link too,
    # but Python finds the environment by its name, so it is not resolved.
    interpreter = Path(python).parent.resolve() / Path(python).name
    mounts = [Path(folder) for folder in (environment.get("LORARL_GPU_MOUNTS") or "/usr:/opt").split(":")]
    if not any(PACKAGES.is_relative_to(folder) for folder in mounts):
        mounts.append(PACKAGES)
    passed = {
        name: value for name, value in environment.items() if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
    }
    if driver:
        # The image has no linker cache, so programs need to know where the driver is.
        passed["LD_LIBRARY_PATH"] = ":".join(filter(None, (str(driver), passed.get("LD_LIBRARY_PATH"))))
        passed["TRITON_LIBCUDA_PATH"] = str(driver)
    packages = [str(PACKAGES), *filter(None, (environment.get("LORARL_GPU_PYTHONPATH", "")).split(":"))]
    programs = [SHIMS, str(interpreter.parent), "/usr/local/bin", "/usr/bin", "/bin"]
    # cc and c++ are links into /etc, which is not mounted.
    passed = {"CC": "gcc", "CXX": "g++"} | passed
    passed |= {
        "PATH": ":".join(programs),
        "PYTHONPATH": ":".join(packages),
        "HOME": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # The stack's: the client of object stores does not start without any.
    passed["SSL_CERT_FILE"] = str(Path(certifi.where()).resolve())
    return Stack(interpreter, tuple(mounts), passed)


def image(stack: Stack) -> bytes:
    """Return the image: links, and the programs by which KubeRay and the operator call Ray and the trainer."""
    calls = {"python": "", "lorarl": "-m lorarl_trainer.cli "}
    shims = {
        f"{SHIMS.strip('/')}/{name}": f'#!/bin/sh\nexec {stack.python} {what}"$@"\n'.encode()
        for name, what in calls.items()
    }
    shims[f"{SHIMS.strip('/')}/ray"] = (
        REPOSITORY / "trainer_image/ray"
    ).read_bytes()  # the same as in the trainer's image
    config = {
        "Env": [f"{name}={value}" for name, value in stack.environment.items()],
        "User": USER,
        "WorkingDir": "/tmp",
    }
    settings = {name: Path("/", name).read_bytes() for name in SETTINGS_FILES if Path("/", name).exists()}
    return images.archive(IMAGE, {**shims, **ACCOUNTS, **settings}, config, links=LINKS)


def changes(stack: Stack) -> Object:
    """Return what a manifest needs for its pods to have the stack: dotted paths in its spec -> values."""
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
    # KubeRay's sidecar has the head's image but not its volumes, without which the image is empty.
    return {"cluster.submissionMode": "HTTPMode", "cluster.podTemplateOverrides": overrides}


def is_here() -> bool:
    """Return whether env.sh was sourced on a machine that a node travelled to."""
    return PREFIX.is_dir() and CACHE == PREFIX
