"""What a dry run says about the rows that it tries."""

from __future__ import annotations

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.rows import Row
from lorarl_trainer.launch.dry_run import long_answers
from lorarl_trainer.launch.inputs import Vocabulary
from unit.contract.manifests import manifest


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[str]:
        assert not add_special_tokens, "an answer is a part of a completion"
        return list(text)


def job(tokens: int) -> LoRARLJob:
    return LoRARLJob.model_validate(manifest({"spec.rollout.maxResponseTokens": tokens}))


def test_an_answer_that_no_completion_can_be_is_a_warning() -> None:
    answers = ("12", None, "345", "6789")
    rows = [EncodedRow(Row("", answer, {}, number), [], []) for number, answer in enumerate(answers, 1)]
    vocabulary = Vocabulary(Letters(), (0,))
    (found,) = long_answers(job(2), rows, vocabulary)
    assert "the answers of 2 of these 4 rows have more tokens" in found
    assert found.endswith("(spec.rollout.maxResponseTokens: 2). That of row 3 has 3.")
    assert long_answers(job(4), rows, vocabulary) == []
