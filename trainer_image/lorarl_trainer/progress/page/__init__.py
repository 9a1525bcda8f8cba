"""The pages that a browser shows: one HTML file each, with its styles, its scripts and its data inside.

`report` shows one run, `compare` several. `runs` lists all. `jobs` lists those of a cluster, and `job` shows one of
them. `message` says why there is nothing to show. The charts are drawn by uPlot (MIT licence), whose files and licence
are in `uplot-1.6.32`, as npm publishes them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
UPLOT = "uplot-1.6.32"
STYLES = (f"{UPLOT}/uPlot.min.css", "report.css")
COMMON = (f"{UPLOT}/uPlot.iife.min.js", "dom.js", "plots.js", "charts.js", "curves.js", "live.js")
SCRIPTS = {
    "report": (*COMMON, "overview.js", "samples.js", "report.js"),
    "compare": (*COMMON, "compare.js"),
    "runs": ("runs.js",),
    "jobs": ("runs.js",),
    "job": (),
    "message": (),
}


def page(name: str, data: Mapping[str, Any], *, title: str, live: str = "", home: str = "", **more: Any) -> str:
    """Return a page with its data as one HTML text that needs no network.

    Args:
        name: a key of SCRIPTS; its HTML is in NAME.html.jinja.
        data: what its scripts show.
        title: of the window.
        live: the command that serves the page, which then asks for newer data; empty for a file.
        home: the address of the list of all runs; empty where there is none.
        more: what its HTML shows without scripts.
    """
    scripts = _read(SCRIPTS[name])
    return (
        _templates()
        .get_template(f"{name}.html.jinja")
        .render(
            title=title,
            live=live,
            home=home,
            styles=_read(STYLES),
            scripts=scripts,
            # No other script runs, not even one that came in with a run's texts.
            script_source=f"'sha256-{base64.b64encode(hashlib.sha256(scripts.encode()).digest()).decode()}'",
            data=json_in_html(data),
            **more,
        )
    )


@lru_cache(maxsize=1)
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def json_in_html(data: Mapping[str, Any]) -> str:
    """Return the data as JSON that cannot end the script element it is in: `<` is written as an escape."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"), default=str).replace("<", "\\u003c")


@cache
def _read(names: tuple[str, ...]) -> str:
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)
