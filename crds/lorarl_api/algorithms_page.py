"""The lists of algorithms in docs/algorithms.md and README.md, generated from the contract."""

from __future__ import annotations

from lorarl_api.page import between, table
from lorarl_api.v1alpha1.algorithm_types import ABOUT

_HEADS = ("`algorithm.type`", "what it is", "when to use it", "paper")


def with_table(text: str) -> str:
    """Return a document with its table of algorithms up to date."""
    rows = [(f"`{name}`", about.what, about.when, _link(about.paper)) for name, about in ABOUT.items()]
    return between(text, "algorithms", table(_HEADS, rows))


def with_list(text: str) -> str:
    """Return a document with its list of algorithms up to date."""
    return between(text, "algorithms", ", ".join(f"`{name}`" for name in ABOUT))


def _link(paper: str) -> str:
    return f"[{paper}](https://arxiv.org/abs/{paper})" if paper else ""
