"""The trainer's GPU image is built from its lock and loads: a quarter of an hour on two cores, 12 GB of build cache.

What a GPU is needed for is left to tests/gpu: no driver is here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node import builds, lifecycle
from node.base_image import BaseImageError
from node.errors import NotReadyError
from node.node import Node
from node.settings import REPOSITORY, from_environment

SECONDS = 3600
LARGEST_MB = 11_000

pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS)]

CHECK = """
FROM trainer AS check
RUN <<'END'
set -eu
python - <<'PYTHON'
import torch  # first, as in the worker: with it come CUDA's libraries
import vllm
import transformer_engine.pytorch
from megatron.core.extensions.transformer_engine import HAVE_TE

import megatron.bridge.peft.canonical_lora
import lorarl_trainer.launch.run

assert HAVE_TE
assert vllm.__version__ and torch.version.cuda.startswith("13."), torch.version.cuda
PYTHON
lorarl --help >/dev/null
ray --version

# What Triton compiles at a job's start, and FlashInfer.
cd /tmp
include=$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')
printf '#include <Python.h>\\n#include <cuda.h>\\nint main(void) { return 0; }' >launcher.c
cc -c launcher.c -I"$include" -I"$CUDA_HOME/include"
printf '__global__ void kernel() {}' >kernel.cu
"$CUDA_HOME/bin/nvcc" -arch=sm_90 -c kernel.cu

test "$(id -u)" = 10001
du -xsm /opt/lorarl
END
"""


def test_the_image_for_gpus_is_built_and_loads_what_it_holds(tmp_path: Path) -> None:
    settings = from_environment()
    had_builder = Node(settings).init is not None
    try:
        lifecycle.builder(settings, print)
    except NotReadyError as reason:
        pytest.skip(str(reason))
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text((REPOSITORY / "Dockerfile").read_text() + CHECK)
    try:
        said = builds.build_stage(settings, dockerfile, "check", {"FLAVOUR": "cuda"})
    except BaseImageError as reason:
        pytest.skip(str(reason))
    finally:
        if not had_builder:
            lifecycle.down(settings, print, everything=False)
    if found := re.search(r"(\d+)\t/opt/lorarl", said):  # not said where nothing had changed
        print(f"packages and lorarl: {found[1]} MB")
        assert int(found[1]) < LARGEST_MB
