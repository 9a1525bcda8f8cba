"""Short answers: a page that says why there is nothing to show, and the tag that changes with a page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from lorarl_trainer.progress.page import page
from lorarl_trainer.progress.web import Answer


def missing(home: str) -> Answer:
    """Return the page of a run that is not there. `home`: the address of the list, as of all these pages."""
    said = "There is no such run. It may have been deleted, or moved to another folder."
    return message("No such run", said, HTTPStatus.NOT_FOUND, home)


def message(
    title: str,
    said: str,
    status: HTTPStatus,
    home: str,
    *,
    state: str = "",
    lines: Sequence[tuple[str, str]] = (),
    renew: bool = False,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return a page that says something.

    Args:
        title: its heading.
        said: the text.
        status: of HTTP.
        home: the address of the list; empty for a page without a way to it.
        state: of the run.
        lines: when something happened, and what.
        renew: whether a browser asks again after some seconds.
        headers: of the answer, besides the usual ones.
    """
    body = page("message", {}, title=title, home=home, said=said, state=state, lines=lines, renew=renew)
    return Answer(body.encode(), status=status, headers=headers or {})


def etag(content: bytes) -> str:
    """Return a tag that changes with the content."""
    return f'"{hashlib.sha256(content).hexdigest()[:20]}"'
