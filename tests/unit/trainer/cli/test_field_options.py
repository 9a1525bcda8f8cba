"""An option in the place of a field, and `--set` of the same field: one would be ignored in silence."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from lorarl_trainer.cli import main
from lorarl_trainer.cli.field_option import FieldOption

NO_FIELD = {
    *("--set", "--job", "--checkpoint", "--out", "--seed", "--row", "--rows", "--eval", "--json", "--prompt-file"),
    *(
        "--samples",
        "--passing",
        "--versions",
        "--tinker",
        "--adapters",
        "--host",
        "--port",
        "--dry-run",
        "--in-cluster",
    ),
    *("--dump-rollouts", "--replay", "--gpu-memory", "--objective", "--at-once", "--share", "--stop", "--start-after"),
    *("--factor", "--min-trials", "--yes", "--until", "--summary", "--name", "--namespace", "--template"),
}
"""Options that decide what no field of a manifest does."""
PAIRS = [
    ("merge a --out m --base b --set spec.model.uri=file:c", "--base", "spec.model.uri"),
    ("merge a --out m --base b --set spec.model.revision=main", "--base", "spec.model.revision"),
    ("chat a --base b --set spec.model={uri: 'file:c'}", "--base", "spec.model.uri"),
    ("serve a --base b --set spec.model.uri=file:c", "--base", "spec.model.uri"),
    ("evaluate a --base b --set spec.model=null", "--base", "spec.model"),
    ("evaluate a --data d --set spec.data.evals=[]", "--data", "spec.data.evals"),
    ("evaluate a --data d --set spec.data.eval.uri=file:e", "--data", "spec.data.eval.uri"),
    ("evaluate a --reward exact --set spec.reward.type=numeric", "--reward", "spec.reward.type"),
    ("evaluate a --temperature 0 --set spec.rollout.temperature=1", "--temperature", "spec.rollout.temperature"),
    (
        "evaluate a --max-tokens 8 --set spec.rollout.maxResponseTokens=9",
        "--max-tokens",
        "spec.rollout.maxResponseTokens",
    ),
    ("serve --tinker --model b --set spec.model.uri=file:c", "--model", "spec.model.uri"),
    ("serve --tinker --model b --rank 8 --set spec.adapter.rank=4", "--rank", "spec.adapter.rank"),
    ("sweep job.yaml --over spec.adapter.rank=8,16 --set spec.adapter.rank=4", "--over", "spec.adapter.rank"),
]


def arguments(line: str) -> list[str]:
    before, _, assignment = line.partition(" --set ")
    return [*before.split(), "--set", assignment]


@pytest.mark.parametrize(("line", "flag", "path"), PAIRS)
def test_a_field_that_an_option_decides_is_not_set_too(line: str, flag: str, path: str) -> None:
    done = CliRunner().invoke(main, arguments(line))
    assert done.exit_code == 1
    told = str(done.exception)
    assert f"--set {path}: got a value beside {flag}, expected one of both" in told
    assert f"Leave out --set {path}, or {flag}." in told


@pytest.mark.parametrize(
    "line",
    [
        "merge a --out m --base b --set spec.trainer.precision=bf16",
        "serve --tinker --model b --set spec.adapter.rank=4",
        "sweep job.yaml --over spec.adapter.rank=8 --set spec.adapter.alpha=4",
    ],
)
def test_other_fields_may_be_set(line: str) -> None:
    """A default of an option is no value that was given."""
    assert "expected one of both" not in str(CliRunner().invoke(main, arguments(line)).exception)


def test_each_option_beside_set_is_known_to_decide_a_field_or_none() -> None:
    unknown = []
    for name, command in main.commands.items():
        flags = {flag: one for one in command.params for flag in one.opts if flag.startswith("--")}
        if "--set" in flags:
            unknown += [
                f"{name} {flag}"
                for flag, one in flags.items()
                if not isinstance(one, FieldOption)
                and flag not in NO_FIELD
                and (name, flag) != ("chat", "--max-tokens")
            ]
    assert unknown == [], (
        "name their fields, or NO_FIELD; chat's --max-tokens is for answers, and the field for episodes"
    )
