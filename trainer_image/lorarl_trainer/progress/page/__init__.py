"""The pages that a browser shows: one HTML file each, with its styles, its scripts and its data inside.

`report` shows one run, `compare` several. The charts are drawn by uPlot (MIT licence), whose files and licence are in
`uplot-1.6.32`, as npm publishes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
UPLOT = "uplot-1.6.32"
STYLES = (f"{UPLOT}/uPlot.min.css", "report.css")
COMMON = (f"{UPLOT}/uPlot.iife.min.js", "dom.js", "plots.js", "charts.js", "curves.js")
SCRIPTS = {
    "report": (*COMMON, "overview.js", "samples.js", "report.js"),
    "compare": (*COMMON, "compare.js"),
}


def page(name: str, data: Mapping[str, Any], *, title: str, live: bool = False) -> str:
    """Return the page `name` (report or compare) with its data as one HTML text that needs no network.

    `name`: a key of SCRIPTS; its HTML is in NAME.html.jinja. `live`: whether the page asks its server for newer data.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(f"{name}.html.jinja").render(
        title=title,
        live=live,
        styles=_read(STYLES),
        scripts=_read(SCRIPTS[name]),
        data=json_in_html(data),
    )


def json_in_html(data: Mapping[str, Any]) -> str:
    """Return the data as JSON that cannot end the script element it is in: `<` is written as an escape."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"), default=str).replace("<", "\\u003c")


def _read(names: tuple[str, ...]) -> str:
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)
