"""What `lorarl --help` shows: every command in a section, and examples that work as they are written."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from lorarl_trainer.cli import MEANT, SECTIONS, main
from lorarl_trainer.cli.help import Command

INSIDE = "Inside a cluster's pods"
PUBLIC = [
    each
    for heading, commands in SECTIONS.items()
    if heading != INSIDE
    for command in commands
    for each in (command.commands.values() if isinstance(command, click.Group) else [command])
]


def helped(command: click.Command) -> str:
    return command.get_help(click.Context(command, info_name=str(command.name), max_content_width=120))


def test_every_command_is_in_the_help_once() -> None:
    lines = [line.split()[0] for line in helped(main).splitlines() if line.startswith("  ")]
    assert [line for line in lines if line in main.commands] == [name for name in main.commands if name != "drain"], (
        "pods have it, nobody types it"
    )


@pytest.mark.parametrize("command", PUBLIC, ids=lambda command: command.name)
def test_every_example_is_shown_and_can_be_parsed(command: click.Command) -> None:
    assert isinstance(command, Command) and command.examples
    for example in command.examples:
        assert f"  {example}" in helped(command).splitlines()
        if example.startswith("kubectl "):  # what another command needs first
            continue
        (typed,) = re.findall(r"\blorarl ([^|#)]+)", example)
        name, *words = shlex.split(typed.removeprefix("env "))
        assert name == command.name
        command.make_context(name, words)


def test_help_is_there_before_the_heavy_packages() -> None:
    program = "import sys; from lorarl_trainer.cli import main; main(['--help'], standalone_mode=False)"
    program += "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = {module.partition(".")[0] for module in done.stdout.splitlines()[-1].split()}
    assert "click" in loaded
    assert loaded & {"torch", "ray", "vllm", "transformers", "pydantic", "numpy", "rich"} == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script_of_completion(shell: str) -> None:
    done = lorarl("completion", shell)
    assert done.returncode == 0, done.stderr
    assert "_LORARL_COMPLETE" in done.stdout


def test_bash_completes_commands_and_options() -> None:
    """As the script does it: bash hands over the words and the place of the cursor."""
    first = lorarl(COMP_WORDS="lorarl va", COMP_CWORD="1", _LORARL_COMPLETE="bash_complete")
    option = lorarl(COMP_WORDS="lorarl validate --s", COMP_CWORD="2", _LORARL_COMPLETE="bash_complete")
    assert first.stdout.split() == ["plain,validate"], first
    assert option.stdout.split() == ["plain,--set"], option


def lorarl(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lorarl_trainer.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        *((name, "`lorarl run job.yaml` trains") for name in ("train", "fit", "start", "grpo", "sft")),
        ("grid", "`lorarl sweep job.yaml --over"),
        ("eval", "`lorarl evaluate RUN`"),
        ("evaluat", "Did you mean one of: 'evaluate'"),
    ],
)
def test_what_a_command_is_called_elsewhere_is_answered_with_its_name_here(typed: str, said: str) -> None:
    done = CliRunner().invoke(main, [typed, "job.yaml"])
    assert done.exit_code == 2 and said in done.output
    assert "drain" not in done.output and "setup" not in done.output
    for each in MEANT.values():
        named = re.findall(r"`lorarl (\w+)", each)
        assert named and set(named) <= main.commands.keys() - MEANT.keys()
