"""Files of a mixture have a tensor for all experts of a layer, as the model has, or one for each projection of each.

Transformers writes the latter, also for families whose published files have the former.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_OF_ONE = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
_WHOLE = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}


def whole_experts(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a file's tensors, with one for all experts of a layer: [experts, outputs, inputs]."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if (of_one := _OF_ONE.fullmatch(name)) is None:
            found[name] = shape
            continue
        block, number, projection = of_one.groups()
        count, rows, _ = found.get(whole := f"{block}.{_WHOLE[projection]}", (0, 0, 0))
        rows += shape[0] if number == "0" else 0
        found[whole] = (max(count, int(number) + 1), rows, shape[1])
    return found
