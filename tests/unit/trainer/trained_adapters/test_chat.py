"""Two answers on a screen: in columns where it is wide enough."""

from __future__ import annotations

from types import SimpleNamespace

from lorarl_api.load import load_job
from lorarl_trainer.trained_adapters.chat import side_by_side, template_arguments

JOB = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {name: chat}
spec:
  model: {uri: "file:base"}
  adapter: {targetModules: [all-linear]}
  reward: {type: exact}
  data: {train: {uri: "file:train.jsonl"}}
  checkpoint: {uri: "file:checkpoints"}
"""
CHATS, NEVER_CHATS = SimpleNamespace(chat_template="{{ messages }}"), SimpleNamespace(chat_template=None)


def test_a_chat_has_the_template_of_the_training() -> None:
    assert template_arguments(load_job(JOB), CHATS) == {}
    thinking = load_job(JOB, ["spec.data.chatTemplateArguments={enable_thinking: false}"])
    assert template_arguments(thinking, CHATS) == {"enable_thinking": False}
    assert template_arguments(load_job(JOB, ["spec.data.chatTemplate=false"]), CHATS) is None
    assert template_arguments(load_job(JOB), NEVER_CHATS) is None


def test_an_adapter_without_a_job_has_the_tokenizer_s_own_template() -> None:
    assert template_arguments(None, CHATS) == {}
    assert template_arguments(None, NEVER_CHATS) is None


def test_a_wide_terminal_shows_two_columns() -> None:
    lines = list(side_by_side("one two three four five six seven eight", "short\nand more", 63))
    assert lines == [
        "base                             adapter",
        "-" * 30 + "   " + "-" * 30,
        "one two three four five six      short",
        "seven eight                      and more",
    ]


def test_a_pipe_gets_the_answers_in_turn() -> None:
    assert list(side_by_side("one\ntwo", "", 0)) == ["base:    one", "         two", "adapter: "]
