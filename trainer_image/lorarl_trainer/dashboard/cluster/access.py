"""Who a reader is, and which namespaces they may see: the API server decides both, by its reviews.

A TokenReview names the user of a bearer token. A SubjectAccessReview says whether that user may list the LoRARLJobs of
a namespace. Answers are kept for some seconds, under digests of the tokens. No token is kept or written anywhere.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from lorarl_api.v1alpha1 import GROUP
from lorarl_trainer.dashboard.cluster.api import PLURAL, Api, ApiError
from lorarl_trainer.threads import in_parallel

FRESH_SECONDS = 30.0
"""For how long an answer holds. A right that was withdrawn, or a token that was, counts for so long."""
LONGEST_SECONDS = 600.0
"""For how long an answer holds while the API server is away."""
AGAIN_SECONDS = 5.0
"""For how long the API server is not asked again after it did not answer, where an older answer will do."""
MOST_ANSWERS = 20_000
ASKING = 16
"""Reviews at a time."""
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
EVERYWHERE = ""
"""All namespaces, as the API server calls them."""


@dataclass(frozen=True)
class Reader:
    """Who asks.

    Attributes:
        name: of the user, for people.
        digest: of the token.
        subject: user, groups, uid and extra, as a SubjectAccessReview takes them.
    """

    name: str
    digest: str
    subject: Mapping[str, Any]


class Access:
    """Asks for reviews. Safe to use from several threads."""

    def __init__(self, api: Api, now: Callable[[], float] = time.monotonic) -> None:
        """`now`: a clock, in seconds. Only tests set it."""
        self._api = api
        self._readers: _Kept[str, Reader | None] = _Kept(now)
        self._allowed: _Kept[tuple[str, str], bool] = _Kept(now)

    def reader(self, token: str) -> Reader | None:
        """Return whose token this is; None if the API server does not take it, because it is wrong or has expired.

        Raises:
            ApiError: the server is away, or this account may not create TokenReviews.
        """
        digest = hashlib.sha256(token.encode()).hexdigest()
        return self._readers.answer(digest, lambda: self._review(token, digest))

    def visible(self, reader: Reader, namespaces: Collection[str]) -> frozenset[str]:
        """Return those of the namespaces whose LoRARLJobs the reader may list.

        Raises:
            ApiError: the server is away, or this account may not create SubjectAccessReviews.
        """
        if not namespaces:
            return frozenset()
        if self._may(reader, EVERYWHERE):
            return frozenset(namespaces)
        wanted = sorted(namespaces)
        allowed = in_parallel(lambda namespace: self._may(reader, namespace), wanted, ASKING)
        return frozenset(name for name, may in zip(wanted, allowed, strict=True) if may)

    def _may(self, reader: Reader, namespace: str) -> bool:
        def ask() -> bool:
            what = {"group": GROUP, "resource": PLURAL, "verb": "list", "namespace": namespace}
            spec = {**reader.subject, "resourceAttributes": what}
            return bool(self._create(ACCESS_REVIEWS, "SubjectAccessReview", spec).get("allowed"))

        return self._allowed.answer((reader.digest, namespace), ask)

    def _review(self, token: str, digest: str) -> Reader | None:
        status = self._create(TOKEN_REVIEWS, "TokenReview", {"token": token})
        if not status.get("authenticated"):
            return None
        user = status["user"]
        subject = {
            "user": user.get("username"),
            **{key: user[key] for key in ("groups", "uid", "extra") if key in user},
        }
        return Reader(str(user.get("username")), digest, subject)

    def _create(self, path: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        group = path.split("/")[2]
        answer = self._api.create(path, {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec})
        status: dict[str, Any] = answer.get("status") or {}
        return status


class _Kept[Key: Hashable, Value]:
    """The newest answers to questions, the ones that were used last."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._lock = now, threading.Lock()
        self._answers: OrderedDict[Key, tuple[float, Value]] = OrderedDict()
        self._ask_at = -AGAIN_SECONDS

    def answer(self, key: Key, ask: Callable[[], Value]) -> Value:
        """Return an answer that is fresh, or an older one while the API server is away.

        Raises:
            ApiError: the server is away and the newest answer is too old, or it refused.
        """
        with self._lock:
            known = self._answers.get(key)
            if known is not None:
                self._answers.move_to_end(key)
        at = self._now()
        passed = at - known[0] if known is not None else LONGEST_SECONDS
        if known is not None and (passed < FRESH_SECONDS or (at < self._ask_at and passed < LONGEST_SECONDS)):
            return known[1]
        try:
            found = ask()
        except ApiError as error:
            if not error.away:
                raise
            self._ask_at = self._now() + AGAIN_SECONDS
            if known is None or passed >= LONGEST_SECONDS:
                raise
            return known[1]
        with self._lock:
            self._answers[key] = (at, found)
            self._answers.move_to_end(key)
            while len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
        return found
