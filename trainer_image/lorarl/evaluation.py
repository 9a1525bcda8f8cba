"""What `lorarl evaluate` found, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_SIDES = ("base", "adapter", "gain")


@dataclass(frozen=True)
class Evaluation:
    """Base model and adapter on the same rows.

    Attributes:
        result: all of it, as `lorarl evaluate --json` prints it.
    """

    result: Mapping[str, Any]

    @property
    def table(self) -> pd.DataFrame:
        """A row for the score, each pass@k and each component; columns base, adapter and gain.

        With the bounds of 95% intervals (base_low, base_high, ...) where they are known.
        """
        import pandas as pd

        rows = {}
        for name, found in self.result.items():
            if isinstance(found, Mapping) and set(_SIDES) <= found.keys():
                bounds = {f"{side}_{end}": found[side][end] for side in _SIDES for end in ("low", "high")}
                rows[name] = {**{side: found[side]["mean"] for side in _SIDES}, **bounds}
        for name, means in self.result["components"].items():
            rows[name] = {**means, "gain": means["adapter"] - means["base"]}
        return pd.DataFrame.from_dict(rows, orient="index")

    def __repr__(self) -> str:
        """Return the means."""
        about = f"{self.result['rows']} rows of {self.result['data']}, reward {self.result['reward']}"
        return f"{about}\n{self.table[list(_SIDES)].round(3)}"

    def _repr_html_(self) -> str:
        table: str = self.table.round(3).to_html(na_rep="")
        return table
