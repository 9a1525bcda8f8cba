import json
import subprocess
import sys
from pathlib import Path

import pytest

from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import encode_examples, encode_prompts
from lorarl_trainer.data.rows import Row
from lorarl_trainer.data.tokenizer import load_tokenizer, stop_token_ids
from lorarl_trainer.errors import InputError
from support.tiny_tokenizers import CHATML, write_tokenizer

BOS_TEMPLATE = "{{ bos_token }}" + CHATML


def row(prompt, answer="4", number=1):
    return Row(prompt, answer, {}, number)


def encoder(tokenizer, *, chat_template=True):
    return PromptEncoder(tokenizer, chat_template=chat_template, stop_ids=stop_token_ids(tokenizer, {}))


def test_a_text_becomes_a_user_message_with_the_assistants_turn_opened(tokenizer):
    tok = tokenizer()
    (ids,) = encoder(tok).encode_prompts([row("2+2")])
    assert tok.decode(ids) == "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n"


def test_messages_go_through_the_template_as_they_are(tokenizer):
    tok = tokenizer()
    (ids,) = encoder(tok).encode_prompts(
        [row([{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2"}])]
    )
    assert tok.decode(ids).startswith("<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n2+2")


def test_prompts_are_encoded_as_transformers_does_it(tokenizer):
    tok = tokenizer(BOS_TEMPLATE, bos=True)
    messages = [{"role": "user", "content": "2+2"}]
    expected = tok.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert encoder(tok).encode_prompts([row(messages)]) == [expected]
    assert expected.count(tok.bos_token_id) == 1


def test_without_a_template_a_text_is_encoded_as_it_is(tokenizer):
    tok = tokenizer(template=None)
    (ids,) = encoder(tok, chat_template=False).encode_prompts([row("2+2=")])
    assert tok.convert_ids_to_tokens(ids) == ["2", "+", "2", "="]


@pytest.mark.parametrize("prompt", ["2+2=", "<s>2+2="])
def test_without_a_template_the_tokenizers_own_bos_comes_first_and_once(tokenizer, prompt):
    tok = tokenizer(template=None, bos=True)
    (ids,) = encoder(tok, chat_template=False).encode_prompts([row(prompt)])
    assert tok.convert_ids_to_tokens(ids) == ["<s>", "2", "+", "2", "="]


def test_a_tokenizer_without_template_says_what_to_set(tokenizer):
    with pytest.raises(InputError) as caught:
        encoder(tokenizer(template=None))
    assert caught.value.field == "spec.data.chatTemplate"
    assert "Set spec.data.chatTemplate to false" in caught.value.hint


def test_messages_without_a_template_are_refused(tokenizer):
    with pytest.raises(InputError, match="the prompt of row 7 is a list of chat messages"):
        encoder(tokenizer(), chat_template=False).encode_prompts([row([{"role": "user", "content": "a"}], number=7)])


def test_a_row_that_the_template_refuses_is_named(tokenizer):
    tok = tokenizer("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InputError, match=r"refuses row 7 .*roles must alternate"):
        encoder(tok).encode_prompts([row("a", number=7)])


THINKING = CHATML.replace("assistant\n", "assistant\n{% if not enable_thinking %}<think></think>{% endif %}")


def with_arguments(tok, **arguments):
    return PromptEncoder(tok, chat_template=True, stop_ids=stop_token_ids(tok, {}), template_arguments=arguments)


def test_arguments_reach_the_template(tokenizer):
    tok = tokenizer(THINKING)
    texts = [
        tok.decode(with_arguments(tok, enable_thinking=on).encode_prompts([row("2+2")])[0]) for on in (True, False)
    ]
    assert [text.endswith("<think></think>") for text in texts] == [False, True]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("enable_thinkin", r"chatTemplateArguments.enable_thinkin: .* does not read.* Did you mean enable_thinking\?"),
        ("tokenize", r"chatTemplateArguments.tokenize: got an argument that lorarl sets itself"),
    ],
)
def test_an_argument_that_does_nothing_or_harm_is_refused(tokenizer, name, told):
    with pytest.raises(InputError, match=told):
        with_arguments(tokenizer(THINKING), **{name: False})


def test_an_argument_with_which_the_template_fails_is_named(tokenizer):
    tok = tokenizer(CHATML + "{{ 'a' * budget if budget }}")
    with pytest.raises(
        InputError, match=r"chatTemplateArguments: got {\"budget\": \"x\"}, with which the template fails"
    ):
        with_arguments(tok, budget="x").encode_prompts([row("2+2")])


@pytest.mark.parametrize(("template", "bos"), [(CHATML, False), (BOS_TEMPLATE, True)])
def test_prompt_and_answer_are_the_conversation_up_to_its_end_of_turn(tokenizer, template, bos):
    tok = tokenizer(template, bos=bos)
    prompt_ids, answer_ids = encoder(tok).encode_example(row("2+2"))
    whole = tok.apply_chat_template([{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}])[
        "input_ids"
    ]
    assert tok.convert_ids_to_tokens(answer_ids) == ["4", "<|im_end|>"]
    assert [*prompt_ids, *answer_ids, *tok("\n", add_special_tokens=False)["input_ids"]] == whole
    assert encoder(tok).encode_prompts([row("2+2")]) == [prompt_ids]


def test_an_answer_gets_eos_where_the_template_writes_none(tokenizer):
    tok = tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}")
    prompt_ids, answer_ids = encoder(tok).encode_example(row("2+2="))
    assert tok.decode(prompt_ids + answer_ids) == "2+2=4<|im_end|>"


def test_an_answer_that_speaks_of_the_stop_token_is_not_cut(tokenizer):
    tok = tokenizer()
    _, answer_ids = encoder(tok).encode_example(row("2+2", "say <|im_end|> twice"))
    assert tok.decode(answer_ids) == "say <|im_end|> twice<|im_end|>"


def test_without_a_template_an_answer_ends_with_eos(tokenizer):
    tok = tokenizer(template=None, bos=True)
    prompt_ids, answer_ids = encoder(tok, chat_template=False).encode_example(row("2+2="))
    assert tok.convert_ids_to_tokens(prompt_ids + answer_ids) == ["<s>", "2", "+", "2", "=", "4", "<|im_end|>"]


def test_an_answer_with_a_leading_line_break_follows_the_prompt(tokenizer):
    """As a rollout's would; together they are one token, as in Qwen's vocabulary."""
    tok = tokenizer()
    prompt_ids, answer_ids = encoder(tok).encode_example(row("2+2", "\n4"))
    assert encoder(tok).encode_prompts([row("2+2")]) == [prompt_ids]
    assert tok.convert_ids_to_tokens(answer_ids) == ["\n", "4", "<|im_end|>"]


def test_a_prompt_without_a_token_is_refused(tokenizer):
    """vLLM would wait for it forever."""
    without = encoder(tokenizer(template=None), chat_template=False)
    without.encode_prompts = lambda rows: [[5], []]
    with pytest.raises(InputError, match=r"spec\.data\.train: got row 9, whose prompt has no tokens \(1 such rows\)"):
        encode_prompts(
            [Row("a", None, {}, 8), Row(" ", None, {}, 9)], without, max_prompt_tokens=4, field="spec.data.train"
        )


def test_rows_with_long_prompts_are_left_out_and_counted(tokenizer):
    rows = [row("x" * length, number=length) for length in (2, 9, 5, 6)]
    encoded = encode_prompts(
        rows, encoder(tokenizer(), chat_template=False), max_prompt_tokens=5, field="spec.data.train"
    )
    assert [kept.row.number for kept in encoded.rows] == [2, 5]
    assert [len(kept.prompt_ids) for kept in encoded.rows] == [2, 5]
    assert (encoded.long_prompts, encoded.long_answers) == (2, 0)


def test_examples_with_long_answers_are_left_out_and_counted(tokenizer):
    rows = [row("xx", "y" * 3), row("xx", "y" * 4), row("x" * 9, "y")]
    options = {"max_prompt_tokens": 5, "max_response_tokens": 4, "field": "spec.data.train"}
    encoded = encode_examples(rows, encoder(tokenizer(), chat_template=False), **options)
    assert [len(kept.answer_ids) for kept in encoded.rows] == [4]
    assert (encoded.long_prompts, encoded.long_answers) == (1, 1)


def test_a_limit_that_leaves_no_row_says_how_long_they_are(tokenizer):
    rows = [row("x" * 7, "y"), row("x" * 12, "y" * 30)]
    without_template = encoder(tokenizer(), chat_template=False)
    with pytest.raises(InputError) as caught:
        encode_prompts(rows, without_template, max_prompt_tokens=5, field="spec.data.eval")
    assert caught.value.field == "spec.rollout.maxPromptTokens"
    assert "every prompt of spec.data.eval is longer (7 to 12 tokens, 2 rows)" in caught.value.got
    with pytest.raises(InputError) as caught:
        encode_examples(rows, without_template, max_prompt_tokens=12, max_response_tokens=1, field="spec.data.train")
    assert caught.value.field == "spec.rollout.maxResponseTokens"
    assert "(2 to 31 tokens, 2 rows)" in caught.value.got


@pytest.mark.parametrize(
    ("configured", "expected"), [({}, [3]), ({"eos_token_id": 9}, [3, 9]), ({"eos_token_id": [9, 3, 1]}, [1, 3, 9])]
)
def test_completions_end_at_eos_of_tokenizer_and_generation_config(tokenizer, configured, expected):
    assert stop_token_ids(tokenizer(), configured) == expected


def test_a_model_without_any_eos_is_refused(tokenizer):
    assert stop_token_ids(tokenizer(eos=None), {"eos_token_id": 9}) == [9]
    with pytest.raises(InputError, match="end-of-sequence"):
        stop_token_ids(tokenizer(eos=None), {})


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [
        ({}, {"eos_token_id": 9}, [3, 9]),
        ({}, {"eos_token_id": [9, 7]}, [3, 7, 9]),
        ({}, {"text_config": {"eos_token_id": 8}}, [3, 8]),
        ({"eos_token_id": 5}, {"eos_token_id": 9}, [3, 5]),
        ({"do_sample": True}, {"eos_token_id": 9}, [3, 9]),
        ({}, {"eos_token_id": None}, [3]),
    ],
)
def test_config_json_names_eos_where_generation_config_does_not(tokenizer, generation, model, expected):
    assert stop_token_ids(tokenizer(), generation, model) == expected


def test_a_model_whose_only_eos_is_in_config_json_is_taken(tokenizer):
    assert stop_token_ids(tokenizer(eos=None), {}, {"eos_token_id": [9, 7]}) == [7, 9]


@pytest.mark.parametrize("eos", ["</s>", [3, "</s>"], -1, True, 2.0])
def test_an_eos_that_is_no_token_number_is_refused(tokenizer, eos):
    with pytest.raises(InputError, match=r"spec\.model\.uri: got a model whose config\.json has the eos_token_id"):
        stop_token_ids(tokenizer(), {}, {"eos_token_id": eos})


def test_an_eos_that_the_model_cannot_generate_ends_nothing(tokenizer):
    assert stop_token_ids(tokenizer(), {"eos_token_id": [9, 200]}, {"vocab_size": 101}) == [3, 9]
    with pytest.raises(InputError, match=r"end-of-sequence tokens \[200\] are beyond its 101 tokens"):
        stop_token_ids(tokenizer(eos=None), {"eos_token_id": 200}, {"vocab_size": 101})


def embedding_of(tok, size):
    return PromptEncoder(tok, chat_template=True, stop_ids=[3], vocabulary_size=size)


@pytest.mark.parametrize("difference", [0, 27])
def test_an_embedding_as_large_as_the_tokenizer_or_larger_is_taken(tokenizer, difference):
    tok = tokenizer()
    larger = embedding_of(tok, len(tok) + difference)
    assert len(encode_prompts([row("2+2")], larger, max_prompt_tokens=99, field="spec.data.train").rows) == 1
    assert tok.batch_decode([[5, len(tok) + difference - 1, len(tok) + 3]], skip_special_tokens=True)[0][0] == "!"


def test_the_vocabulary_is_counted_once_and_not_for_each_row(tokenizer, monkeypatch):
    tok = tokenizer()
    counted = []
    monkeypatch.setattr(type(tok), "__len__", lambda self: counted.append(1) or 99)
    wide = embedding_of(tok, 99)
    encode_prompts([row("2+2")] * 50, wide, max_prompt_tokens=99, field="spec.data.train")
    assert len(counted) == 1


def test_a_token_without_an_embedding_is_refused_with_its_row(tokenizer):
    """A tokenizer to which a token was added, with the model as it was."""
    tok = tokenizer()
    size = len(tok)
    tok.add_tokens(["<tool>"])
    rows = [row("2+2", number=1), row("2 <tool> 2", number=2)]
    smaller = embedding_of(tok, size)
    assert len(encode_prompts(rows[:1], smaller, max_prompt_tokens=99, field="spec.data.train").rows) == 1
    told = rf"a tokenizer of {size + 1} tokens for a model of {size}, and row 2 of spec\.data\.train has token {size} "
    with pytest.raises(InputError, match=told + r"\('<tool>'\)"):
        encode_prompts(rows, smaller, max_prompt_tokens=99, field="spec.data.train")
    with pytest.raises(InputError, match="resize_token_embeddings"):
        encode_examples(
            [row("2", "<tool>")], smaller, max_prompt_tokens=99, max_response_tokens=9, field="spec.data.train"
        )


def test_a_tokenizer_without_a_pad_token_is_taken(tokenizer):
    tok = tokenizer()
    assert tok.pad_token_id is None
    assert len(encoder(tok).encode_prompts([row("2"), row("2+2")])) == 2


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{% for m in messages %}", r"a template that refuses row 1 \(TemplateSyntaxError"),
        ("{{ messages[5].content }}", r"a template that refuses row 1 \(UndefinedError"),
        ("{{ 1 / 0 }}", r"a template that refuses row 1 \(ZeroDivisionError"),
        ("{{ '' }}", r"spec\.data\.chatTemplate: got a template that writes nothing for row 1"),
        ("{{ 'a' + today }}", r"'today' is undefined.*chatTemplateArguments: \{today: ...\}"),
    ],
)
def test_a_template_that_fails_is_told_with_its_row(tokenizer, template, told):
    with pytest.raises(InputError, match=told):
        encode_prompts([row("2+2")], encoder(tokenizer(template)), max_prompt_tokens=99, field="spec.data.train")


def test_what_the_template_adds_counts_as_the_prompts_length(tokenizer):
    tok = tokenizer("{{ 'You are a calculator. ' * 3 }}" + CHATML)
    rows = [row("2+2"), row("2+2+2+2")]
    lengths = [len(ids) for ids in encoder(tok).encode_prompts(rows)]
    assert min(lengths) > 66
    fitting = encode_prompts(rows, encoder(tok), max_prompt_tokens=lengths[0], field="spec.data.train")
    assert (len(fitting.rows), fitting.long_prompts) == (1, 1)
    told = rf"every prompt of spec\.data\.train is longer \({lengths[0]} to {lengths[1]} tokens, 2 rows\)"
    with pytest.raises(InputError, match=told):
        encode_prompts(rows, encoder(tok), max_prompt_tokens=20, field="spec.data.train")


def test_a_broken_tokenizer_is_refused(tmp_path):
    write_tokenizer(tmp_path, template=None)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError) as caught:
        load_tokenizer(tmp_path)
    assert caught.value.field == "spec.model.uri"
    assert "whose tokenizer cannot be loaded (JSONDecodeError: Expecting property name" in caught.value.got


def test_a_contradictory_configuration_is_named_not_the_tokenizer(tmp_path):
    write_tokenizer(tmp_path, template=None)
    config = {"model_type": "qwen3", "num_hidden_layers": 80, "layer_types": ["full_attention"] * 12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as caught:
        load_tokenizer(tmp_path)
    assert caught.value.got.startswith(
        f"{tmp_path / 'config.json'}, which is not a readable model configuration (Strict"
    )
    assert "`num_hidden_layers` (80) must be equal to the number of `layer_types` (12)" in caught.value.got
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"max_new_tokens": "many"}, "TypeError: '<=' not supported between instances of 'str' and 'int'"),
        ({"max_new_tokens": -1}, "ValueError: `max_new_tokens` must be greater than 0, but is -1."),
    ],
)
def test_senseless_values_for_generation_are_told_before_a_worker_starts(
    tmp_path: Path, values: dict[str, object], why: str
) -> None:
    folder = write_tokenizer(tmp_path, template=None)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2], "temperature": 0.6}))
    load_tokenizer(folder)
    (folder / "generation_config.json").write_text(json.dumps(values))
    with pytest.raises(InputError) as caught:
        load_tokenizer(folder)
    assert caught.value.got == f"{folder / 'generation_config.json'}, whose values cannot be used ({why})"


@pytest.mark.slow
def test_the_driver_loads_tokenizers_and_data_without_torch(tmp_path):
    folder = write_tokenizer(tmp_path / "model", template=CHATML)
    (tmp_path / "train.jsonl").write_text('{"prompt": "2+2", "answer": "4"}\n')
    program = f"""
import sys
from pathlib import Path
from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data import encoder, encoding, order, rows, tokenizer
tok = tokenizer.load_tokenizer(Path({str(folder)!r}))
tokenizer.load_tokenizer(Path({str(folder)!r}))
made = encoder.PromptEncoder(tok, chat_template=True, stop_ids=tokenizer.stop_token_ids(tok, {{}}))
data = rows.load_rows(DataSource(uri="hf://{tmp_path}"), field="spec.data.train", needs_answer=True, fetch=Path)
encoding.encode_examples(data, made, max_prompt_tokens=99, max_response_tokens=9, field="spec.data.train")
assert "torch" not in sys.modules and "vllm" not in sys.modules
print(len(data))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("1\n", 0), ran.stderr
    assert "PyTorch" not in ran.stderr
