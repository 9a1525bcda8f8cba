"""Brings up a node that travelled, with everything that a user installs on a cluster."""

from __future__ import annotations

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_node import stack
from gpu_node.places import IMAGES, PACKAGES
from gpu_node.stack import Stack
from node import builds, images, lifecycle, programs
from node.installation import KUBERAY, STORE, install_kuberay, install_lorarl, install_store, wait_available
from node.node import Node
from node.settings import NODE, REPOSITORY, Settings
from support.cluster.kubectl import RealCluster, real_cluster
from support.cluster.processes import find

GPU = "nvidia.com/gpu"
OUR_PACKAGES = ("crds/lorarl_api", "trainer_image/lorarl_trainer")


def up(settings: Settings, mounted: Stack, say: lifecycle.Say) -> None:
    """Start the node with its images, KubeRay, an S3 server and lorarl; with a driver, wait for its GPUs.

    Raises:
        NodeError: the node cannot be started.
        AssertionError: something on it is not ready in time.
    """
    started = time.monotonic()
    copy_packages(PACKAGES)
    with ThreadPoolExecutor() as pool:
        compiled = pool.submit(compile_packages, mounted)
        load(lifecycle.up(settings, say), mounted)
        say(f"the images are loaded after {time.monotonic() - started:.1f} s")
        count = install(settings)
        say(f"{count} GPUs are available and everything else is up after {time.monotonic() - started:.1f} s")
        compiled.result()
    say(f"the stack's modules are compiled after {time.monotonic() - started:.1f} s")


def install(settings: Settings) -> int:
    """Install KubeRay, the S3 server and lorarl, and wait for them; return how many GPUs pods can have."""
    with TemporaryDirectory() as folder, real_cluster(settings.kubeconfig, Path(folder)) as cluster:
        install_kuberay(cluster)
        install_store(cluster, builds.STORE)
        install_lorarl(cluster, builds.OPERATOR, stack.IMAGE)
        wait_available(cluster, KUBERAY, "kuberay-operator")
        wait_available(cluster, STORE, "s3")
        if settings.driver:
            Node(settings).wait(f"{GPU} is available", lambda: gpus(cluster), programs.DEVICE_PLUGIN)
        return gpus(cluster)


def copy_packages(folder: Path) -> None:
    """Copy our packages into a folder that everyone may read."""
    shutil.rmtree(folder, ignore_errors=True)
    for package in map(Path, OUR_PACKAGES):
        shutil.copytree(REPOSITORY / package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))


def compile_packages(mounted: Stack) -> None:
    """Compile all that pods import. They cannot write bytecode, so every start would compile thousands of modules."""
    folders = [folder for folder in mounted.environment["PYTHONPATH"].split(":") if Path(folder).is_dir()]
    # Some packages have files for other Pythons, which do not compile. They are never imported.
    subprocess.run(
        [str(mounted.python), "-m", "compileall", "-q", "-q", "-j", "0", *folders],
        stdout=subprocess.DEVNULL,
        check=False,
    )


def load(node: Node, mounted: Stack) -> None:
    """Put all images into the node's store. Those of one static program are made here."""
    kuberay = images.of_program(builds.kuberay_image(), Path(find("ray-operator")), name="manager", user="65532:65532")
    store = images.of_program(builds.STORE, Path(find("versitygw")), user="65532:65532")
    operator = (IMAGES / "operator.tar").read_bytes()
    with ThreadPoolExecutor() as pool:
        list(pool.map(node.load, (operator, kuberay, store, stack.image(mounted))))


def gpus(cluster: RealCluster) -> int:
    """Return how many GPUs pods can have on the node."""
    node = cluster.api.get("Node", NODE)
    return int(node["status"]["allocatable"].get(GPU, 0)) if node else 0
