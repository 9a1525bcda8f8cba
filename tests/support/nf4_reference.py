"""What bitsandbytes makes of some rows in NF4, recorded in `nf4_reference.json`.

bitsandbytes is not installed for tests. To record again, with torch 2.11 (its CPU build is enough):

    pip install --no-deps --target /tmp/bitsandbytes bitsandbytes==0.50.0
    PYTHONPATH=/tmp/bitsandbytes .venv/bin/python tests/support/nf4_reference.py
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

RECORDED = Path(__file__).with_suffix(".json")
_LENGTHS = (576, 576, 100, 64)
"""One ends within a block, and one is a single block."""


def rows() -> list[torch.Tensor]:
    """Weights [1, in] of several sizes, by arithmetic that is exact everywhere; the second one's blocks differ much."""
    found = []
    for number, length in enumerate(_LENGTHS):
        values = torch.tensor([(7919 * (place + 911 * number) % 2003 - 1001) / 4096 for place in range(length)])
        found.append((values * (2.0 ** (torch.arange(length) // 64 - 4) if number == 1 else 1.0))[None])
    return found


def recorded() -> list[dict[str, Any]]:
    """For each row: codes and scales, the spread and mean of its scales, and the values that it stands for."""
    found: list[dict[str, Any]] = json.loads(RECORDED.read_text())
    return found


def _record() -> None:
    theirs: Any = import_module("bitsandbytes.functional")

    found = []
    for row in rows():
        codes, state = theirs.quantize_4bit(row, blocksize=64, compress_statistics=True, quant_type="nf4")
        found.append(
            {
                "codes": codes.flatten().tolist(),
                "scales": state.absmax.tolist(),
                "spread": state.state2.absmax.item(),
                "mean": state.offset.item(),
                "values": theirs.dequantize_4bit(codes, state).flatten().tolist(),
            }
        )
    RECORDED.write_text("[\n" + ",\n".join(map(json.dumps, found)) + "\n]\n")


if __name__ == "__main__":
    _record()
