"""Our images, built from the Dockerfile, do their work in pods as the chart and the operator make them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from lorarl_operator.manifests.pods import pod_security_context, security_context
from node import builds
from node.installation import Images, apply, namespace
from node.node import Node
from node.settings import REPOSITORY, from_environment
from support.cluster.kubectl import RealCluster

SECONDS = 240.0  # importing Megatron and vLLM takes half a minute of a whole core
WARM_SECONDS = 5.0

NAMESPACE = "images"

OPERATOR_SCRIPT = """
set -eu
lorarl-operator --help
lorarl dashboard --help
python -c 'import jinja2, obstore, lorarl_trainer.dashboard.cluster.serve; from kubernetes.client import ApiClient'
python -c 'import lorarl_operator.main, lorarl_operator.control.handlers'
! python -c 'import torch' 2>/dev/null
"""

TRAINER_SCRIPT = """
set -eu
ray --version
lorarl validate /job/addition-cpu.yaml
bash -lc 'command -v ray python lorarl'
python - <<'END'
import importlib.util, pathlib, sys

import vllm  # noqa: F401
from lorarl_trainer.backends.registry import get_backend
from lorarl_trainer.devices.cpu import CpuDevice

get_backend("megatron").import_libraries(CpuDevice())
import lorarl_trainer.launch.run, mlflow, peft, ray, torch, wandb  # noqa: E401

assert not torch.cuda.is_available()
dashboard = pathlib.Path(ray.__file__).parent / "dashboard/client/build/index.html"
assert dashboard.exists(), dashboard
# A start compiles nothing.
compiled = [getattr(module, "__cached__", None) for module in list(sys.modules.values())]
late = [path for path in compiled if isinstance(path, str) and not pathlib.Path(path).exists()]
assert not late, late
END
"""


@pytest.fixture(scope="module")
def here(cluster: RealCluster, own_node: Node, images: Images) -> Iterator[RealCluster]:
    """The node of `make cluster`, with images of this tree, and a namespace where pods must be restricted."""
    apply(cluster, namespace(NAMESPACE, "restricted"))
    yield cluster
    cluster.must("delete", "namespace", NAMESPACE)


def test_the_operator_starts_with_the_charts_rights(here: RealCluster) -> None:
    # As the chart's _security.tpl: any user but root, a root file system that cannot be written to, /tmp.
    pod, container = (
        {**pod_security_context(), "runAsUser": 65532},
        {**security_context(), "readOnlyRootFilesystem": True},
    )
    said = run(here, "operator", builds.OPERATOR, OPERATOR_SCRIPT, pod, container)
    assert "--trainer-image" in said


def test_the_trainer_has_all_that_its_pods_call(here: RealCluster) -> None:
    manifest = (REPOSITORY / "examples/addition-cpu.yaml").read_text()
    here.api.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "job", "namespace": NAMESPACE},
            "data": {"addition-cpu.yaml": manifest},
        }
    )
    said = run(here, "trainer", builds.TRAINER, TRAINER_SCRIPT, pod_security_context(), security_context())
    assert "ray, version " in said
    assert "/opt/lorarl/bin/ray\n/opt/lorarl/bin/python\n/opt/lorarl/bin/lorarl\n" in said


@pytest.mark.parametrize("image", [builds.OPERATOR, builds.TRAINER])
def test_an_image_is_read_only_and_has_its_sbom_and_no_secret(here: RealCluster, image: str) -> None:
    """No user may write to it; its bill of materials is in it."""
    script = """
    set -eu
    id -u; id -g
    places=$(find / -xdev \\( -path /proc -o -path /sys -o -path /dev \
        -o -path /tmp -o -path /var/tmp -o -path /run/lock \
      -o -path /home/lorarl \\) -prune -o -writable ! -type l -print 2>/dev/null || true)
    test -z "$places" || { echo "may be written: $places"; exit 1; }
    test ! -e /etc/pip.conf && test ! -e /etc/uv
    cat /usr/share/lorarl/sbom.cdx.json
    """
    name = "bill-" + builds.LOCKS[image]
    said = run(here, name, image, script, pod_security_context(), security_context())
    user, group, document = said.split("\n", 2)
    assert (user, group) == ("10001", "10001"), "the image's own user, where the pod names none"
    made = [
        sys.executable,
        "scripts/sbom.py",
        f"requirements/{builds.LOCKS[image]}.lock",
        "--image",
        json.loads(document)["metadata"]["component"]["name"],
    ]
    assert document == subprocess.run(made, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout


def test_an_operator_is_less_than_250_mb(here: RealCluster) -> None:
    nodes = here.api.list("Node")
    [size] = {
        each["sizeBytes"]
        for node in nodes
        for each in node["status"]["images"]
        if builds.OPERATOR in (each.get("names") or [])
    }
    print(f"{builds.OPERATOR}: {size / 1e6:.0f} MB")
    assert size < 250e6


def test_what_did_not_change_is_not_built_again(here: RealCluster) -> None:
    seconds = builds.build_all(from_environment())
    print({name: round(took, 1) for name, took in seconds.items()})
    assert max(seconds.values()) < WARM_SECONDS


def run(
    here: RealCluster, name: str, image: str, script: str, pod_security: dict[str, Any], security: dict[str, Any]
) -> str:
    """What a pod's script printed; it must end well."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["bash", "-c", script],
        "securityContext": security,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, {"name": "job", "mountPath": "/job"}],
    }
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "job", "configMap": {"name": "job", "optional": True}}]
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": pod_security,
        "containers": [container],
        "volumes": volumes,
    }
    here.api.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
    )
    pod = here.api.wait(
        "Pod", name, NAMESPACE, lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"), seconds=SECONDS
    )
    said = here.must("logs", name, f"--namespace={NAMESPACE}")
    assert pod["status"]["phase"] == "Succeeded", said
    return said
