"""The lists of algorithms in docs/algorithms.md and README.md, generated from the contract."""

from __future__ import annotations

from lorarl_api.v1alpha1.algorithm_types import ABOUT

_BEGIN, _END = "<!-- algorithms: written by `make generate` -->", "<!-- end of the algorithms -->"


def with_table(text: str) -> str:
    """Return a document with its table of algorithms up to date."""
    rows = [f"| `{name}` | {about.what} | {about.when} | {_link(about.paper)} |" for name, about in ABOUT.items()]
    return _between(
        text, "\n".join(["| `algorithm.type` | what it is | when to use it | paper |", "|---|---|---|---|", *rows])
    )


def with_list(text: str) -> str:
    """Return a document with its list of algorithms up to date."""
    return _between(text, ", ".join(f"`{name}`" for name in ABOUT))


def _link(paper: str) -> str:
    return f"[{paper}](https://arxiv.org/abs/{paper})" if paper else ""


def _between(text: str, generated: str) -> str:
    """Replace what is between the two marks.

    Raises:
        ValueError: the document lacks them.
    """
    if _BEGIN not in text or _END not in text:
        raise ValueError(f"the document lacks {_BEGIN} or {_END}")
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{generated}\n{_END}{rest.partition(_END)[2]}"
