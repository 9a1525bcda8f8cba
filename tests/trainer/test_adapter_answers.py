"""What base model and adapter answer: where completions end, and that the lines which are printed get an answer."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from pathlib import Path

import pytest

from lorarl_trainer.lora.model_card import model_card
from lorarl_trainer.progress import final_message
from lorarl_trainer.trained_adapters.model import Decoding, load_adapted
from lorarl_trainer.trained_adapters.source import find_adapter
from support.tiny_tokenizers import CHATML, write_tokenizer
from trainer.test_adapter_names import folder as folder


def test_a_stop_text_ends_a_completion_whatever_is_beside_it(folder: Path) -> None:
    """Neither the prompt's end nor a longer neighbour counts, since `tokens` goes into rewards of length."""
    model = load_adapted(find_adapter(str(folder / "adapter"), None, (), str(folder / "base")))
    prompts = [model.tokenizer(text)["input_ids"] for text in ("say a", "say b")]
    free = [answers[0].text for answers in model.generate(prompts, Decoding(1, 12, None))]
    for own, other in ((0, 1), (1, 0)):
        text = free[own]
        stop = next(text[at : at + 2] for at in range(len(text) - 1) if text[at : at + 2] not in free[other])
        alone = model.generate([prompts[own]], Decoding(1, 12, None, (stop,)))[0][0]
        beside = model.generate(prompts, Decoding(1, 12, None, (stop,)))[own][0]
        assert alone == beside
        assert alone.text == text[: text.index(stop) + 2] and not alone.truncated
        assert alone.tokens <= 12
    across = "a" + free[0][0]
    assert across not in free[0]
    (answer,) = model.generate([prompts[0]], Decoding(1, 12, None, (across,)))[0]
    assert answer.text == free[0], "the prompt's end is no beginning of a stop text"


@pytest.mark.parametrize("template", [CHATML, None], ids=["chat", "plain"])
def test_the_printed_lines_and_those_of_the_card_answer_a_question(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str | None
) -> None:
    base = shutil.copytree(folder / "base", tmp_path / "it's a base")
    write_tokenizer(base, template=template)
    adapter = shutil.copytree(folder / "adapter", tmp_path / "adapter")
    write_tokenizer(adapter, template=template)
    summary = {"job": "sums", "base_model": str(base), "base_revision": None, "algorithm": "grpo"}
    summary |= {"adapter": {"rank": 4}, "adapter_uri": adapter.as_uri()}
    printed = final_message(summary).split("in Python:\n")[1].split("\nvLLM ")[0]
    metadata = {"baseModel": str(base), "job": "sums", "step": 1, "baseModelFingerprint": "x"}
    config = {"r": 4, "lora_alpha": 64, "revision": None}
    card = re.findall("```python\n(.*?)```", model_card(metadata, config, {}).decode(), flags=re.DOTALL)
    monkeypatch.chdir(adapter)
    answers = []
    for code in (printed, *card):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, {})
        answers.append(out.getvalue())
    assert len(answers) == 2 and answers[0] == answers[1] and answers[0].strip()
