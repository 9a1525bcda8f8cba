"""Values of options that are refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lorarl_trainer.cli import SECTIONS, main


def _floats() -> list[tuple[str, str]]:
    """Each option of a command that takes a float."""
    commands = [command for those in SECTIONS.values() for command in those]
    return [
        (str(command.name), option.opts[0])
        for command in commands
        for option in command.params
        if isinstance(option.type, click.types.FloatParamType)
    ]


@pytest.mark.parametrize(("command", "option"), _floats())
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_number_of_an_option_is_finite(command: str, option: str, value: str) -> None:
    done = CliRunner().invoke(main, [command, "a", option, value])
    assert done.exit_code == 2
    assert f"{value} is no finite number." in done.output


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe1", "bytes that are not UTF-8 at 0"),
        (b"", "which is empty"),
        (b" \n", "which is empty"),
    ],
    ids=["missing", "not text", "empty", "white space"],
)
def test_a_file_without_a_prompt_is_refused_before_models_are_loaded(
    content: bytes | None, got: str, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    if content is not None:
        file.write_bytes(content)
    told = str(CliRunner().invoke(main, ["chat", "no-adapter", "--prompt-file", str(file)]).exception)
    assert told.startswith("lorarl: --prompt-file: got ") and got in told, told
    assert "expected a file with a prompt, as text in UTF-8." in told
    assert "Is a directory" in str(CliRunner().invoke(main, ["chat", "a", "--prompt-file", str(tmp_path)]).exception)


def test_a_row_and_a_prompt_are_two_questions(tmp_path: Path) -> None:
    (file := tmp_path / "prompt.txt").write_text("1+1=")
    done = CliRunner().invoke(main, ["chat", "no-adapter", "--row", "3", "--prompt-file", str(file)])
    assert str(done.exception) == (
        "lorarl: --row: got 3 beside --prompt-file, expected one question. Leave one of the two out."
    )
