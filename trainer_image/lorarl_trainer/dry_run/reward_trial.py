"""What a dry run shows of a reward: rows scored with completions that are made up, without the model."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec, NamedReward, RewardSpec
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.errors import InputError, LorarlError, RewardServerError
from lorarl_trainer.rewards.scores import Outcome, Scorer, ToScore, fix_of
from lorarl_trainer.rewards.source import with_rewards
from lorarl_trainer.samples.rounding import differ

WRONG = "I do not know."
PATIENCE_SECONDS = 7.0
"""How long a dry run waits for all scores of a reward."""
LATE = f"no score within the {PATIENCE_SECONDS:g} s that a dry run waits"
STUCK = f"{LATE}, and nothing else ended meanwhile"
_HANGS_SECONDS = 4.0
"""If nothing ends for so long at the end of the patience, a call hangs."""
_EXITS = ("SystemExit", "KeyboardInterrupt")
_A_NUMBER = "a number, or a mapping with score, for each completion"
_SHOWN_LINES, _SHOWN_WIDTH = 12, 110
_WHY_EQUAL = "A reward without differences teaches nothing."
_NO_ANSWERS = (
    "These rows have no answer, so only wrong completions could be tried. Call the reward with a good one yourself: it "
    "must score differently."
)


@dataclass(frozen=True)
class Try:
    """A completion that was made up, and its outcome. `own` says that it is the row's own answer."""

    row: EncodedRow
    completion: str
    outcome: Outcome
    own: bool = False


def hasty(spec: LoRARLJobSpec) -> LoRARLJobSpec:
    """Return the spec with servers that are asked once, and for no longer than a dry run waits."""

    def of[R: (RewardSpec, NamedReward)](reward: R) -> R:
        if reward.server is None:
            return reward
        once = reward.server.model_copy(update={"retries": 0})
        limit = min(reward.timeout_seconds, PATIENCE_SECONDS - 1)
        return reward.model_copy(update={"server": once, "timeout_seconds": limit})

    teacher = spec.algorithm.distillation and spec.algorithm.distillation.server
    if spec.algorithm.distillation and teacher:
        limit = min(teacher.timeout_seconds, PATIENCE_SECONDS - 1)
        once = teacher.model_copy(update={"retries": 0, "timeout_seconds": limit})
        distillation = spec.algorithm.distillation.model_copy(update={"server": once})
        algorithm = spec.algorithm.model_copy(update={"distillation": distillation})
        spec = spec.model_copy(update={"algorithm": algorithm})
    return with_rewards(spec, of)


async def try_reward(scorer: Scorer, rows: Sequence[EncodedRow], count: Callable[[str], int]) -> list[Try]:
    """Score the rows' own answers, a wrong completion and an empty one. What takes too long has no score.

    Raises:
        InputError: none of them has a score, so a run would stop at its first step; or a call does not come back.
        RewardServerError: none has a score, and a server could not be asked.
    """
    made = [
        (row, completion, own)
        for row in rows
        for completion, own in ((row.row.answer, True), (WRONG, False), ("", False))
        if completion is not None
    ]
    outcomes = await _soon(
        scorer,
        [
            ToScore(row.row.prompt, completion, row.row.answer, row.row.raw, tokens=count(completion))
            for row, completion, _ in made
        ],
    )
    tries = [Try(row, completion, outcome, own) for (row, completion, own), outcome in zip(made, outcomes, strict=True)]
    if all(outcome.cause for outcome in outcomes):
        raise _nothing_scored(scorer, outcomes)
    if fault := _no_return(tries):
        raise InputError(scorer.field, *fault)
    return tries


async def _soon(scorer: Scorer, samples: Sequence[ToScore]) -> list[Outcome]:
    """Score each sample for itself, so that one that hangs hides no other. Stop waiting after PATIENCE_SECONDS.

    A slow reward is distinguished from one that hangs: where a reward hangs, nothing ends any more.
    """
    ended = began = time.monotonic()

    async def score(sample: ToScore) -> Outcome:
        nonlocal ended
        (outcome,) = await scorer.score([sample])
        ended = time.monotonic()
        return outcome

    tasks = [asyncio.ensure_future(score(sample)) for sample in samples]
    _, waiting = await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    late = Outcome.failed("timeout", LATE if ended - began > PATIENCE_SECONDS - _HANGS_SECONDS else STUCK)
    return [late if task in waiting else task.result() for task in tasks]


def _no_return(tries: Sequence[Try]) -> tuple[str, str, str] | None:
    """Return what was found, expected, and the fix, if some call hangs or ends its process; None if none does."""

    def first(ends: Callable[[Outcome], bool]) -> tuple[str, str] | None:
        one = next((one for one in tries if ends(one.outcome)), None)
        return (f"{_quote(one.completion)} of row {one.row.row.number}", one.outcome.message) if one else None

    if over := first(lambda outcome: outcome.cause == "crash" or outcome.message.startswith(_EXITS)):
        which, why = over
        hint = "Return a number there, such as 0.0, in place of sys.exit, exit or os._exit."
        return f"a function that ends its process for the completion {which} ({why})", _A_NUMBER, hint
    if stuck := first(lambda outcome: outcome.cause == "timeout" and outcome.message != LATE):
        which, why = stuck
        hint = "Find the loop that does not end, or what it waits for. A run loses timeoutSeconds on each of them."
        return f"a function that does not return for the completion {which} ({why})", _A_NUMBER, hint
    return None


def _nothing_scored(scorer: Scorer, outcomes: Sequence[Outcome]) -> LorarlError:
    causes = "; ".join(f"{count} x {failure}" for failure, count in Counter(one.failure for one in outcomes).items())
    got = f"no score for any of {len(outcomes)} completions that were made up to try it ({causes})"
    hint = fix_of(scorer.field, [one.cause for one in outcomes])
    if any(one.cause == "server" for one in outcomes):
        return RewardServerError(f"{scorer.field}: got {got}. {hint} A dry run asks once; a run repeats its requests.")
    if any(one.message in (LATE, STUCK) for one in outcomes):
        hint = (
            "Find the loop that does not end, or what it waits for. "
            "If it needs that long, a run waits up to timeoutSeconds per completion."
        )
    elif all(one.cause == "crash" or one.message.startswith(_EXITS) for one in outcomes):
        hint = "Return a number in place of sys.exit, exit or os._exit: a step without any score stops a run."
    else:
        hint = f"{hint.removesuffix('.')}: a step without any score stops a run."
    return InputError(scorer.field, got, _A_NUMBER, hint)


def trial_lines(tries: Sequence[Try], evaluation: str = "") -> Iterator[str]:
    """Yield the scores row by row, and what looks wrong about them. `evaluation` names the one of `data.evals`."""
    numbers = list(dict.fromkeys(one.row.row.number for one in tries))
    what = f"of {evaluation}: " if evaluation else ""
    yield f"reward   {what}{len(numbers)} rows, scored without the model, with completions that are made up here:"
    for number in numbers:
        shown = [_shown(one) for one in tries if one.row.row.number == number]
        yield f"  row {number}: " + ";  ".join(shown)
    yield from _warnings(tries)


def looks_wrong(tries: Sequence[Try]) -> bool:
    """Return whether `trial_lines` has a warning about them."""
    return any(_warnings(tries))


def _warnings(tries: Sequence[Try]) -> Iterator[str]:
    failed = [one for one in tries if one.outcome.cause]
    if failed:
        row, outcome = failed[0].row.row.number, failed[0].outcome
        then = "A run leaves such completions out."
        if any(one.outcome.message.endswith(LATE) for one in failed):
            then = "A run waits up to the reward's timeoutSeconds for each, and then leaves it out."
        yield (
            f"warning: {len(failed)} of {len(tries)} completions have no score, first that of row {row} "
            f"({outcome.failure}). {then}"
        )
    values = [one.outcome.value for one in tries if not one.outcome.cause]
    if len(values) > 1 and not differ(max(values), min(values)):
        why = _WHY_EQUAL if any(one.own for one in tries) else _NO_ANSWERS
        yield f"warning: every completion got {values[0]:g}. {why}"
    own, wrong = (
        [one.outcome.value for one in tries if one.own is own and not one.outcome.cause] for own in (True, False)
    )
    if own and wrong and max(own) <= max(wrong) and len(set(values)) > 1:
        how = "higher than" if max(own) < max(wrong) else "as high as"
        yield f"warning: a made-up completion scores {how} every row's own answer. Check the reward."


def printed_lines(log: Path) -> Iterator[str]:
    """Yield the beginning of what the reward printed."""
    if not log.is_file() or not log.stat().st_size:
        return
    yield "what the reward printed (a run keeps it in logs/rewards.log):"
    with log.open(encoding="utf-8", errors="replace") as file:
        lines = [line.rstrip("\n") for line in islice(file, _SHOWN_LINES)]
        more = sum(1 for _ in file)
    for line in lines:
        yield f"  | {line if len(line) <= _SHOWN_WIDTH else f'{line[: _SHOWN_WIDTH - 3]}...'}"
    if more:
        yield f"  | and {more:,} more lines"


def _shown(one: Try) -> str:
    name = _quote(one.completion)
    return f"its own answer {name} {_score(one.outcome)}" if one.own else f"{name} {_score(one.outcome)}"


def _quote(completion: str) -> str:
    text = repr(completion)
    return text if len(text) <= 40 else f"{text[:36]}...'"


def _score(outcome: Outcome) -> str:
    if outcome.cause is not None:
        return f"-> no score ({outcome.cause})"
    parts = ", ".join(f"{name} {value:.3g}" for name, value in outcome.components.items())
    return f"-> {outcome.value:.3g}" + (f" ({parts})" if parts else "")
