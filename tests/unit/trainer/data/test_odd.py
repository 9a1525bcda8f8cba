"""Prompts that can be trained on, but are probably a mistake, are warnings that name the first row."""

from __future__ import annotations

import pytest

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.odd import few_rows, odd_answers, odd_prompts, same_prompts, shared_prompts
from lorarl_trainer.data.rows import Row


def chat(*roles: str, number: int = 1) -> Row:
    return Row([{"role": role, "content": "a"} for role in roles], None, {}, number)


@pytest.mark.parametrize(
    ("rows", "warning"),
    [
        (
            [chat("system", "user"), chat("human", number=2)],
            "row 2 has a message with the role 'human'. Did you mean user?",
        ),
        ([chat("User")], "row 1 has a message with the role 'User'. Did you mean user?"),
        ([chat("wizard", "user")], "row 1 has a message with the role 'wizard'. Did you mean user or assistant?"),
        (
            [chat("user"), chat("user", "assistant", number=2)],
            "1 prompts end with a message of the assistant, first that of row 2.",
        ),
        (
            [Row('[{"role": "user", "content": "a"}]', None, {}, 4)],
            "1 prompts are texts that look like chat messages, first that of row 4.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_odd_prompt_is_a_warning(rows: list[Row], warning: str) -> None:
    (found,) = odd_prompts(rows, "spec.data.train")
    assert found.startswith(f"spec.data.train: {warning}")


def test_usual_prompts_are_none() -> None:
    rows = [
        chat("system", "user"),
        chat("user", "assistant", "user"),
        Row("2+2", None, {}, 3),
        Row("[1, 2]", None, {}, 4),
    ]
    assert list(odd_prompts(rows, "spec.data.train")) == []


def answered(*answers: str | None, column: str = "answer") -> list[Row]:
    cells = enumerate(answers, start=1)
    return [Row("p", answer, {"prompt": "p", column: answer or "4"}, number) for number, answer in cells]


@pytest.mark.parametrize("column", [" answer", "Answer", "ANSWER "])
def test_answers_in_a_column_of_almost_the_name_are_a_warning(column: str) -> None:
    (found,) = odd_answers(answered(None, None, column=column), "spec.data.train", "answer", needed=False)
    assert found.startswith("spec.data.train.answerField: no row has the column answer")
    assert f"row 1 has {column!r}" in found
    assert list(odd_answers(answered(None, column="label"), "spec.data.train", "answer", needed=False)) == []


def test_empty_answers_are_a_warning_where_answers_are_needed() -> None:
    rows = answered("4", "", "5", " \n")
    (found,) = odd_answers(rows, "spec.data.train", "answer", needed=True)
    assert found.startswith("spec.data.train.answerField: 2 of 4 answers are empty, first that of row 2.")
    assert list(odd_answers(rows, "spec.data.train", "answer", needed=False)) == []
    assert list(odd_answers(answered("4", "5"), "spec.data.train", "answer", needed=True)) == []


def test_answers_that_are_no_texts_are_a_warning_that_says_where_they_are() -> None:
    cells = ["Rome", ["Paris", "paris"], None, True]
    rows = [
        Row("p", cell if isinstance(cell, str) else None, {"prompt": "p", "city": cell}, number)
        for number, cell in enumerate(cells, start=1)
    ]
    (found,) = odd_answers(rows, "spec.data.train", "city", needed=False)
    assert found == (
        "spec.data.train.answerField: 2 of 4 answers are no text or number, first that of row 2, ['Paris', 'paris'] "
        "(list). A reward gets None as their answer. Write them as text, JSON as a string, or let the reward read "
        "row['city']."
    )
    assert list(odd_answers([rows[0], rows[2]], "spec.data.train", "city", needed=False)) == []


def test_a_template_that_ignores_the_messages_is_a_warning() -> None:
    rows = [EncodedRow(Row(prompt, None, {}, number), [1, 2], []) for number, prompt in enumerate("ab")]
    (found,) = same_prompts(rows, "spec.data.train")
    assert "all 2 prompts have the same tokens, though the rows differ" in found
    assert list(same_prompts(rows[:1], "spec.data.train")) == []
    assert list(same_prompts([rows[0], rows[0]], "spec.data.train")) == [], "the data repeats a row"
    other = EncodedRow(Row("b", None, {}, 2), [1, 3], [])
    assert list(same_prompts([rows[0], other], "spec.data.train")) == []


def test_held_out_prompts_that_are_trained_on_are_a_warning() -> None:
    train, held_out = (
        [EncodedRow(Row("", None, {}, token), [token], []) for token in tokens] for tokens in ("abc", "xcb")
    )
    (found,) = shared_prompts(train, held_out, "spec.data.eval")
    assert found.startswith("spec.data.eval: 2 of 3 prompts are also trained on, first that of row c.")
    assert list(shared_prompts(train, held_out[:1], "spec.data.eval")) == []


def test_fewer_rows_than_a_step_takes_are_a_warning() -> None:
    rows = [EncodedRow(chat("user", number=number), [number], []) for number in range(4)]
    (warning,) = few_rows(rows, 8)
    assert warning.startswith("spec.rollout.promptsPerStep: 8, but the data has only 4 rows, so each step takes some")
    assert not list(few_rows(rows, 4))
