"""What this machine has, and why it cannot run a row."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lorarl_api.load import load_job
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.families import FAMILIES
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.verdict import Verdict, judge
from scaling.rows import Row
from side_by_side import ours
from side_by_side.prepare import POSITIONS
from side_by_side.systems import NO_TRL, visible_gpus
from side_by_side.work import SHAPES, Shape

GPU_FIELDS = ("name", "memory.total", "memory.free", "compute_cap", "driver_version")
MIB = 1 << 20


@dataclass(frozen=True)
class Machine:
    """What this machine has.

    Attributes:
        gpus: the visible ones.
        driver: their driver's version.
        room: bytes that are free in the folder of the models.
        made: names of the models that are there.
    """

    gpus: Sequence[Gpu]
    driver: str
    room: int
    made: frozenset[str] = frozenset()

    def why_not(self, row: Row, *, job: bool = False) -> str | None:
        """Return why a row cannot run here; None if it can. `job`: a job of a cluster was named for it."""
        if row.gpus > len(self.gpus):
            return f"needs {row.gpus} GPUs, and this machine has {len(self.gpus)}"
        if row.system == "trl" and find_spec("trl") is None:
            return NO_TRL
        if row.system == "pods" and not job:
            return "needs --job and KUBECONFIG, as bench_gpu_cluster.py does"
        try:
            planned(row, self.gpus[0])
        except InputError as error:
            return str(error).splitlines()[0]
        size = model_bytes(SHAPES[row.size])
        if row.size not in self.made and size > self.room:
            return f"its model takes {size / 1e9:.0f} GB, and the models' folder has {self.room / 1e9:.0f} GB left"
        return None


def planned(row: Row, gpu: Gpu) -> Verdict:
    """Return how each worker would run a row.

    Raises:
        InputError: it does not fit, or cannot run so.
    """
    nowhere = Path("/models")
    gpus = 1 if row.system == "pods" else row.gpus
    job = ours.manifest(nowhere, nowhere, row.work, gpus, steps=1)
    return judge(load_job(json.dumps(job), row.settings).spec, config_of(SHAPES[row.size]), gpu)


def config_of(shape: Shape) -> dict[str, Any]:
    """Return the config.json of a model of this shape, as far as plans read it."""
    names = {"architectures": [FAMILIES[shape.model_type].architecture], "max_position_embeddings": POSITIONS}
    return {**shape.config, **names}


def model_bytes(shape: Shape) -> int:
    """Return the size of a model's files."""
    return 2 * sizes_of(config_of(shape)).parameters(1)


def find_gpus() -> tuple[list[Gpu], str]:
    """Return the visible GPUs, and the version of their driver; none on a machine without any."""
    query = ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [], ""
    rows = [[field.strip() for field in line.split(",")] for line in told.splitlines()]
    visible = [rows[number] for number in visible_gpus(len(rows))]
    return [gpu_of(row) for row in visible], rows[0][-1]


def gpu_of(fields: Sequence[str]) -> Gpu:
    """Return the GPU of a line of nvidia-smi."""
    name, total, free, capability, _ = fields
    major, minor = capability.split(".")
    return Gpu(int(total) * MIB, int(free) * MIB, name, (int(major), int(minor)))
