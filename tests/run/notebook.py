"""Runs a notebook's cells as its kernel does: in one process, below a running event loop, with their sources known."""

from __future__ import annotations

import ast
import asyncio
import json
import linecache
from pathlib import Path
from typing import Any


class Notebook:
    """The code cells of a notebook, and the names that they have made so far."""

    def __init__(self, path: Path) -> None:
        self.file = json.loads(path.read_text())
        self.cells = ["".join(cell["source"]) for cell in self.file["cells"] if cell["cell_type"] == "code"]
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.shown: list[Any] = []
        """The value of the last line of each cell that was run; None for one that is no expression."""

    def run(self, number: int) -> None:
        """Run one cell."""
        source, name = self.cells[number], f"<cell {number}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        tree, last = ast.parse(source), None
        if isinstance(tree.body[-1], ast.Expr):
            last = compile(ast.Expression(tree.body.pop().value), name, "eval")  # type: ignore[attr-defined]
        code = compile(tree, name, "exec")

        async def cell() -> Any:
            exec(code, self.names)
            return eval(last, self.names) if last else None

        loop = asyncio.new_event_loop()  # asyncio.run would install its own handler for SIGINT, which a kernel does not
        self.shown.append(loop.run_until_complete(cell()))
        loop.close()

    def number_of(self, beginning: str) -> int:
        """The only cell with this beginning."""
        (number,) = [number for number, cell in enumerate(self.cells) if cell.startswith(beginning)]
        return number
