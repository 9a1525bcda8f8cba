"""The rules of data sources: which columns and rows an algorithm learns from, by where they are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.algorithm_types import FROM_ANSWERS, FROM_PAIRS, is_one_of, listed

_PAIRS, _IS_PAIRS = is_one_of("self.algorithm.type", FROM_PAIRS), f"algorithm.type is {listed(FROM_PAIRS, 'or')}"
COLUMNS = {
    "chosenField": FROM_PAIRS,
    "rejectedField": FROM_PAIRS,
    "messagesField": FROM_ANSWERS,
    "tokensField": FROM_ANSWERS,
}
"""Columns of rows that only some types read."""


def _has_any(source: str, columns: Sequence[str] = tuple(COLUMNS)) -> str:
    return " || ".join(f"has({source}.{column})" for column in columns)


def _rows(path: str, rows: str, source: str) -> Iterator[Rule]:
    """The rules of one place with data sources. `rows` has {} in the place of a condition on `source`."""
    for types in dict.fromkeys(COLUMNS.values()):
        own = [column for column in COLUMNS if COLUMNS[column] == types]
        yield Rule(
            path,
            f"{is_one_of('self.algorithm.type', types)} || {rows.format(f'!({_has_any(source, own)})')}",
            f"have neither {own[0]} nor {own[1]} unless algorithm.type is {listed(types, 'or')}",
            f"Remove them, or set algorithm.type to {listed(types, 'or')}.",
        )
    yield Rule(
        path,
        f"!({_PAIRS}) || "
        + rows.format(f"!has({source}.reasoningGym)" + (" || has(one.reward)" if path == "data.evals" else "")),
        f"have no reasoningGym if {_IS_PAIRS}, which learns from pairs of a chosen and a rejected answer",
        "Set uri to a file or a data set with the columns prompt, chosen and rejected.",
    )
    opened = "has(self.environment) && !has(self.environment.tools) && !has(self.environment.skyrlGym)"
    yield Rule(
        path,
        f"{opened} || {rows.format(f'!has({source}.episodes)')}",
        "have no episodes without an environment that opens them",
        "Set uri to rows with prompts, or set environment.function, textarena, gymnasium, verifiers or openEnv.",
    )
    alone = path in ("data.train", "data.eval")
    generated = " || has(one.reward)" if path == "data.evals" else ""
    yield Rule(
        f"{path}.answerField" if alone else path,
        f"!({_PAIRS}) || {rows.format(f"{source}.answerField == 'answer'{generated}")}",
        f"{'be absent' if alone else 'have no answerField'} if {_IS_PAIRS}, which reads chosenField and rejectedField",
        "Remove answerField. Name the columns of both answers in chosenField and rejectedField.",
    )


ROW_RULES: tuple[Rule, ...] = (
    *_rows("data.train", "!has(self.data.train) || ({})", "self.data.train"),
    *_rows("data.mixture", "!has(self.data.mixture) || self.data.mixture.all(one, {})", "one"),
    *_rows("data.eval", "!has(self.data.eval) || ({})", "self.data.eval"),
    *_rows("data.evals", "self.data.evals.all(one, {})", "one"),
    Rule(
        "data.evals",
        f"self.data.evals.all(one, !has(one.reward) || !({_has_any('one')}))",
        "have no columns of pairs, conversations or tokens beside a reward, which scores completions of prompts",
        "Remove them, or the reward.",
    ),
)
