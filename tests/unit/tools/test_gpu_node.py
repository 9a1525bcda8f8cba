"""What is packed for a GPU machine, and what a manifest needs for its pods to have that machine's Python and CUDA."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import yaml

from gpu_node import stack
from gpu_node.packing import libraries
from gpu_node.places import PACKAGES, PARTS, PREFIX
from lorarl_api.load import load_job
from support.real_cluster.example import ARITHMETIC, ROOT

LDD = """\tlinux-vdso.so.1 (0x00007f8b28d53000)
\tlibmnl.so.0 => /lib/x86_64-linux-gnu/libmnl.so.0 (0x00007f8b28bd0000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f8b289ca000)
\tlibcap.so.2 => /lib/x86_64-linux-gnu/libcap.so.2 (0x00007f8b28bae000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f8b28d55000)
"""
DRIVER = Path("/usr/local/nvidia/lib64")
PYTHON = "/opt/torch/bin/python3"


def test_the_c_library_stays_where_it_is() -> None:
    """Another one than the machine's own would not get along with its loader."""
    assert [path.name for path in libraries(LDD)] == ["libmnl.so.0", "libcap.so.2"]


def test_pods_see_folders_variables_and_driver_of_the_machine() -> None:
    environment = {
        "NCCL_NVLS_ENABLE": "0",
        "CUDA_HOME": "/usr/local/cuda",
        "AWS_SECRET_ACCESS_KEY": "ours",
        "LORARL_GPU_PYTHONPATH": "/opt/site",
    }
    made = stack.from_environment(DRIVER, environment, PYTHON)
    assert made.mounts == (Path("/usr"), Path("/opt")), "/opt has our packages, too"
    assert made.environment["PYTHONPATH"] == f"{PACKAGES}:/opt/site"
    assert made.environment["LD_LIBRARY_PATH"] == str(DRIVER)
    assert made.environment["PATH"].split(":")[:2] == ["/shims", "/opt/torch/bin"]
    assert (made.environment["NCCL_NVLS_ENABLE"], made.environment["CUDA_HOME"]) == ("0", "/usr/local/cuda")
    assert "AWS_SECRET_ACCESS_KEY" not in made.environment


def test_our_packages_are_mounted_where_no_other_mount_has_them() -> None:
    assert stack.from_environment(None, {"LORARL_GPU_MOUNTS": "/usr:/data/python"}, PYTHON).mounts[-1] == PACKAGES


def test_the_image_calls_ray_and_the_trainer_by_the_machines_python() -> None:
    made = stack.image(stack.from_environment(DRIVER, {}, PYTHON))
    with tarfile.open(fileobj=io.BytesIO(made)) as image:
        config, layer = (image.extractfile(name) for name in ("config.json", "layer.tar"))
        assert config is not None
        assert layer is not None
        assert json.load(config)["config"]["User"] == "10001:10001"
        with tarfile.open(fileobj=layer) as files:
            shim = files.extractfile("shims/lorarl")
            assert shim is not None
            assert shim.read().decode().splitlines()[1] == f'exec {PYTHON} -m lorarl_trainer.cli "$@"'


def test_the_changed_manifest_is_one_that_lorarl_takes() -> None:
    changes = stack.changes(stack.from_environment(DRIVER, {}, PYTHON))
    cluster = load_job(yaml.safe_dump(ARITHMETIC.manifest("changed", changes))).spec.cluster
    assert cluster.submission_mode == "HTTPMode"
    for role in (cluster.pod_template_overrides.head, cluster.pod_template_overrides.worker):
        assert role is not None
        pod = role.model_dump()["spec"]
        assert [volume["hostPath"]["path"] for volume in pod["volumes"]] == ["/usr", "/opt"]
        assert [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]] == ["/usr", "/opt"]


def test_the_script_of_the_other_machine_has_the_same_places() -> None:
    script = (ROOT / "tools/gpu_node/env.sh").read_text()
    assert f"_there={PREFIX}\n" in script
    assert f"{PREFIX}.parts" == str(PARTS)


def test_the_script_says_when_parts_are_missing(tmp_path: Path) -> None:
    script = (ROOT / "tools/gpu_node/env.sh").read_text().replace(str(PREFIX), str(tmp_path / "node"))
    (tmp_path / "env.sh").write_text(script)
    (tmp_path / "node.parts").mkdir()
    (tmp_path / "node.parts/part.00-of-2").write_bytes(b"")
    done = subprocess.run(["bash", "-c", f". {tmp_path}/env.sh"], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 1
    assert "not all parts are in" in done.stderr
