"""One entry of `spec.publish`: which version is wanted, what its state is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lorarl_api.v1alpha1 import PublishedStatus, PublishedVersion, PublishSpec, TargetName
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.served import Drop, Item, Move, Serve, Servers
from lorarl_operator.decide.versions import Held, best_version, not_better

_KEPT_VERSIONS = 10
_BY_ITSELF = frozenset({Publishing.NO_RESULT, Publishing.TRAINING_RUNS})
"""Why nothing is served yet although no gate holds anything back."""

State = Literal["Waiting", "Serving", "HeldBack", "Failed", "Withdrawing"]
type Standing = tuple[State, Publishing, str]


@dataclass(frozen=True, slots=True)
class Found:
    """An entry after a decision: what is written of it, and what to do."""

    state: State
    reason: Publishing
    message: str
    version: PublishedVersion | None = None
    serving: str | None = None
    versions: tuple[PublishedVersion, ...] = ()
    moves: tuple[Move, ...] = ()


def decide_entry(
    entry: PublishSpec,
    status: Mapping[str, Any],
    stored: PublishedStatus | None,
    servers: Servers,
    items: Sequence[Item],
) -> Found:
    """Decide about an entry of the manifest.

    Args:
        entry: The entry.
        status: Of the job.
        stored: What the status has of the entry.
        servers: Those of the entry's target.
        items: Those of this entry, also of targets that it had before.
    """
    place = (entry.target, servers.place(entry))
    versions = _served_before(stored, items)
    before = versions[-1] if versions else None
    reached = stored.version if stored and stored.version else before
    wanted, held = _wanted(entry, status, reached, versions, items)
    item = next((one for one in items if wanted and one.model == wanted.model and one.at == place), None)
    if wanted and item and _has_taken_over(item, before):
        versions = (*(one for one in versions if one.model != wanted.model), wanted)[-_KEPT_VERSIONS:]
    served = versions[-1] if versions else None
    answers = served.model if served and any(one.model == served.model and one.answers for one in items) else None
    obstacle = servers.obstacle(entry, wanted) if wanted and item is None else None
    if wanted and obstacle:
        stays = f"{answers} answers meanwhile" if answers else ""
        standing: Standing = "Failed", obstacle.reason, sentences(obstacle.message, stays)
    else:
        standing = _standing(entry, wanted, item, held, answers)
    moves = tuple(_moves(entry, wanted, served, items, place, blocked=obstacle is not None)) if wanted else ()
    return Found(*standing, wanted, answers, tuple(versions), moves)


def is_done(entry: PublishSpec, status: Mapping[str, Any], stored: PublishedStatus) -> bool:
    """Whether the version that is wanted serves, or none is, or another job serves in place of this one."""
    if stored.reason == Publishing.SUPERSEDED:
        return True
    reached = stored.version or next(reversed(stored.versions), None)
    wanted, _ = _wanted(entry, status, reached, stored.versions, ())
    return wanted is None or (stored.state == "Serving" and stored.serving == wanted.model)


def withdraw(items: Sequence[Item]) -> Found | None:
    """Remove all that is left of an entry that the manifest no longer has; None if that is done."""
    if not items:
        return None
    moves = tuple(Drop(one) for one in items if not one.going)
    names = ", ".join(one.model for one in items)
    return Found("Withdrawing", Publishing.WITHDRAWING, f"{names} is being removed from the servers.", moves=moves)


def _served_before(stored: PublishedStatus | None, items: Sequence[Item]) -> tuple[PublishedVersion, ...]:
    """The versions that were served, the newest last. A job that was applied again learns them from the servers."""
    if stored and (stored.version or stored.versions):
        return tuple(stored.versions)
    left = sorted(items, key=lambda one: (one.answers, one.version.step if one.version else 0))
    return tuple(one.version for one in left if one.version)


def _wanted(
    entry: PublishSpec,
    status: Mapping[str, Any],
    reached: PublishedVersion | None,
    versions: Sequence[PublishedVersion],
    items: Sequence[Item],
) -> tuple[PublishedVersion | None, Held | None]:
    """The version that is to be served, and why a newer one is not."""
    if entry.step is not None:
        known = next((one for one in reversed(versions) if one.step == entry.step), None)
        if known:
            return known, None
        steps = ", ".join(str(one.step) for one in versions) or "none"
        text = f"Step {entry.step} was never served. Steps that were: {steps}."
        return reached, Held(Publishing.NEVER_SERVED, text)
    found = best_version(entry, str(status.get("phase", "")), status.get("best") or {})
    if isinstance(found, Held):
        return reached, found
    if reached and found.model == reached.model:
        return reached, None
    failed = any(reached and one.model == reached.model and one.failed for one in items)
    rival = (versions[-1] if versions else None) if failed else reached
    held = not_better(entry, found, rival)
    return (reached, held) if held else (found, None)


def _has_taken_over(item: Item, before: PublishedVersion | None) -> bool:
    """Whether a version serves: at first all servers must have it, later one is enough."""
    return not item.going and (item.ready or (item.answers and before is not None and before.model == item.model))


def _moves(
    entry: PublishSpec,
    wanted: PublishedVersion,
    served: PublishedVersion | None,
    items: Sequence[Item],
    place: tuple[TargetName, str],
    *,
    blocked: bool,
) -> Iterator[Move]:
    """What brings the servers from these items to the wanted version. What answers stays until that one does.

    `blocked`: whether the servers cannot take the wanted version.
    """
    kept = {one.model: one for one in (served, wanted) if one}
    if not blocked:
        yield Serve(entry, wanted)
    answers = any(one.model == wanted.model and one.at == place and one.answers for one in items)
    for one in items:
        if one.at == place and (version := kept.get(one.model)):
            if version != wanted and not one.going:
                yield Serve(entry, version)
        elif not one.going and (not one.answers or (served == wanted and answers)):
            yield Drop(one)


def _standing(
    entry: PublishSpec, wanted: PublishedVersion | None, item: Item | None, held: Held | None, answers: str | None
) -> Standing:
    """State, reason and message of an entry. `answers`: the model that does."""
    if held and (wanted is None or held.reason is Publishing.NEVER_SERVED):
        state: State = "Waiting" if held.reason in _BY_ITSELF else "HeldBack"
        return state, held.reason, sentences(held.message, f"{answers} stays" if answers else "")
    assert wanted is not None, "without a version there is a reason why"
    others = held.message if held and held.reason not in _BY_ITSELF else ""
    elsewhere = answers != wanted.model or not (item and item.answers)
    stays = f"{answers} answers meanwhile" if answers and elsewhere else ""
    if item and item.failed:
        return "Failed", Publishing.LOAD_FAILED, sentences(f"{wanted.model}: {item.failed}", stays, others)
    if item and item.answers and answers == wanted.model:
        reason = Publishing.SERVING if entry.step is None else Publishing.PINNED
        return "Serving", reason, sentences(f"{wanted.model} answers: {item.text}", others)
    text = "it is created" if item is None else "it is being deleted" if item.going else item.text
    return "Waiting", Publishing.LOADING, sentences(f"{wanted.model} is being loaded: {text}", stays, others)
