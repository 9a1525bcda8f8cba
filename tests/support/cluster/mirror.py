"""What is in the cluster, by watches of the tests' own, and what no operator may ever do, noted whenever it happens.

At every moment a job has at most one live RayJob, which exists and is not being deleted. No RayJob is made twice.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException

from support.cluster.client import Api, ApiError, Object
from support.cluster.processes import until

KINDS = ("LoRARLJob", "RayJob", "Job")
_OF_A_JOB = ("RayJob", "Job")


class Mirror:
    """The objects of one namespace, and the history of RayJobs and clean-up Jobs."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self.namespace = api, namespace
        self._changed = threading.Condition()
        self._objects: dict[tuple[str, str], Object] = {}
        self._live: dict[str, set[str]] = {}
        self.made: Counter[tuple[str, str]] = Counter()
        """How often an object of a name was made, by the uid of its LoRARLJob, or `nobody`."""
        self.violations: list[str] = []
        self._stopping = False

    def get(self, kind: str, name: str) -> Object | None:
        with self._changed:
            return self._objects.get((kind, name))

    def all(self, kind: str) -> list[Object]:
        with self._changed:
            return [one for (of, _), one in self._objects.items() if of == kind]

    def names_made(self, uid: str) -> list[str]:
        """RayJobs that were made for a LoRARLJob of this uid."""
        with self._changed:
            return sorted(name for owner, name in self.made if owner == uid)

    def wait_for_news(self, seconds: float) -> None:
        """Return when something has changed, or after so long."""
        with self._changed:
            self._changed.wait(seconds)

    def follow(self) -> None:
        """Watch, until `stop` and one more change."""
        for kind in KINDS:
            # The server makes its own watch of a kind that is new when it is first asked.
            until(30, f"{kind} can be watched", partial(self._can_be_watched, kind))
            threading.Thread(target=self._follow, args=(kind,), daemon=True, name=f"mirror-{kind}").start()

    def stop(self) -> None:
        self._stopping = True

    def _can_be_watched(self, kind: str) -> bool:
        try:
            list(self._api.watch(kind, self.namespace, seconds=1))
        except ApiError:
            return False
        return True

    def _follow(self, kind: str) -> None:
        try:
            for change, one in self._api.watch(kind, self.namespace, seconds=7200):
                if self._stopping:
                    return
                with self._changed:
                    self._note(change, kind, one)
                    self._changed.notify_all()
            ended: object = "it has ended"
        except (ApiError, OSError, HTTPException) as error:
            ended = error
        if not self._stopping:
            self.violations.append(f"the test's own watch of {kind} failed, so nothing is known: {ended}")

    def _note(self, change: str, kind: str, one: Object) -> None:
        meta = one["metadata"]
        if change == "DELETED":
            self._objects.pop((kind, meta["name"]), None)
        else:
            self._objects[kind, meta["name"]] = one
        if kind not in _OF_A_JOB:
            return
        owner = next((each["uid"] for each in meta.get("ownerReferences", ()) if each.get("controller")), "nobody")
        if change == "ADDED":
            self.made[owner, meta["name"]] += 1
            if self.made[owner, meta["name"]] > 1:
                self.violations.append(
                    f"{kind} {meta['name']} of {owner} was made {self.made[owner, meta['name']]} times"
                )
        if kind == "RayJob":
            live = self._live.setdefault(owner, set())
            (live.discard if change == "DELETED" or "deletionTimestamp" in meta else live.add)(meta["name"])
            if len(live) > 1:
                self.violations.append(f"{sorted(live)} are live at a time")


@contextmanager
def mirror(api: Api, namespace: str) -> Iterator[Mirror]:
    """Follow a namespace until the block ends."""
    one = Mirror(api, namespace)
    one.follow()
    try:
        yield one
    finally:
        one.stop()
