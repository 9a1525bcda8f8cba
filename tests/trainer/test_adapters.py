"""`lorarl evaluate`, `chat` and `merge` on a real base model and a real PEFT adapter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from lorarl_trainer.cli import main
from support.tiny_tokenizers import CHATML, write_tokenizer

ROWS = [{"prompt": f"say {word}", "answer": word, "level": number} for number, word in enumerate("abcd")]
REWARD = """
def score(prompt, completion, answer, row):
    assert row["answer"] == answer
    return float(len(completion) % 3 == 0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, an adapter that changes it, rows and a reward."""
    folder = tmp_path_factory.mktemp("adapters")
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": 128, "eos_token_id": 3, "bos_token_id": None, "pad_token_id": 0}
    Qwen3ForCausalLM(Qwen3Config(**shape, **tokens, num_key_value_heads=2, head_dim=32)).save_pretrained(
        folder / "base"
    )
    write_tokenizer(folder / "base", template=CHATML)
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    options = LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(base, options).save_pretrained(folder / "adapter")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (folder / "thirds.py").write_text(REWARD)
    return folder


def lorarl(*words: str | Path, said: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=said)


def test_an_evaluation_scores_base_and_adapter_as_peft_computes_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    words = ("evaluate", "adapter", "--data", "rows.jsonl", "--reward", "thirds:score", "--max-tokens", "9")
    done = lorarl(*words, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("base"), "adapter")
    tokenizer = AutoTokenizer.from_pretrained("base")

    def scores() -> list[list[float]]:
        """One prompt at a time, without padding."""
        result = []
        for row in ROWS:
            messages = [{"role": "user", "content": row["prompt"]}]
            inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
            ids = inputs["input_ids"]
            made = model.generate(input_ids=ids, max_new_tokens=9, do_sample=False, eos_token_id=3, pad_token_id=0)
            text = tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
            result.append([float(len(text) % 3 == 0)])
        return result

    assert found["adapter_scores"] == scores()
    with model.disable_adapter():
        assert found["base_scores"] == scores()
    assert found["score"]["gain"]["mean"] == pytest.approx(
        found["score"]["adapter"]["mean"] - found["score"]["base"]["mean"]
    )
    assert (found["rows"], found["samples"], found["temperature"]) == (4, 1, 0.0)


def test_samples_give_pass_at_k_and_a_seed_repeats_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = ("evaluate", "adapter", "--data", "rows.jsonl", "--reward", "thirds:score", "--max-tokens", "6")
    first, again = (lorarl(*words, "--samples", "3", "--rows", "2", "--json") for _ in range(2))
    found = json.loads(first.stdout)
    assert found == json.loads(again.stdout)
    assert [len(row) for row in found["adapter_scores"]] == [3, 3]
    passed = [float(max(row) >= 1) for row in found["adapter_scores"]]
    assert found["pass@3"]["adapter"]["mean"] == sum(passed) / 2
    people = lorarl(*words, "--samples", "3", "--rows", "2").stdout
    assert "2 rows, 3 samples at temperature 1, reward thirds:score" in people
    assert "pass@3 (score at least 1)" in people


def test_a_chat_answers_each_line_by_both(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = lorarl("chat", "adapter", "--max-tokens", "6", said="hello\n/reset\nhello\n/quit\nnever\n")
    assert done.exit_code == 0, done.output
    first, second = done.stdout.split("base:    ")[1:]
    assert first == second, "the conversation was forgotten"
    base, adapter = first.split("adapter: ")
    assert base.strip() != adapter.strip()


def test_a_merged_model_computes_what_base_and_adapter_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = lorarl("merge", "adapter", "--out", "merged")
    assert done.exit_code == 0, done.output
    together = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("base"), "adapter")
    merged, tokenizer = AutoModelForCausalLM.from_pretrained("merged"), AutoTokenizer.from_pretrained("merged")
    ids = tokenizer("what is merged?", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        assert torch.allclose(merged(ids).logits, together(input_ids=ids).logits, atol=1e-4)
        with together.disable_adapter():
            assert not torch.allclose(merged(ids).logits, together(input_ids=ids).logits, atol=1e-2)
    assert tokenizer.chat_template == CHATML
    assert not list(Path().glob(".merged*"))
    assert (
        "--out: got merged, which exists, expected a new folder" in lorarl("merge", "adapter", "--out", "merged").output
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "nowhere"), "ADAPTER: got nowhere, which is not a folder, expected the folder or URI of a PEFT"),
        (("chat", "base"), "ADAPTER: got base, which contains no adapter_config.json, expected"),
        (("merge", "no-weights", "--out", "m"), "no-weights, which contains no adapter_model.safetensors, expected"),
        (("merge", "garbage", "--out", "m"), "garbage, whose adapter_config.json cannot be used (JSONDecodeError"),
        (("evaluate", "adapter"), "--data: got nothing, expected the rows to evaluate on. Add --data, or name the job"),
        (("evaluate", "adapter", "--data", "rows.jsonl"), "--reward: got nothing, expected the reward to score with"),
        (("evaluate", "adapter", "--data", "rows.jsonl", "--reward", "thirds:scor"), "has no such function"),
        (("evaluate", "adapter", "--data", "gone.jsonl", "--reward", "exact"), "file:gone.jsonl, which does not exist"),
        (("merge", "adapter", "--base", "gone", "--out", "m"), "whose base model gone cannot be loaded ("),
        (("merge", "adapter", "--base", "other", "--out", "m"), "which PEFT cannot load onto other ("),
        (("evaluate", "unfinished"), "unfinished: this run has published no adapter yet."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_named_and_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    for name in ("no-weights", "garbage", "unfinished"):
        Path(name).mkdir(exist_ok=True)
    Path("no-weights/adapter_config.json").write_text("{}")
    Path("garbage/adapter_config.json").write_text("{ garbage")
    Path("garbage/adapter_model.safetensors").touch()
    Path("unfinished/run_summary.json").write_text(json.dumps({"adapter_uri": None, "manifest": ""}))
    if not Path("other").exists():
        config = Qwen3Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=128, head_dim=32)
        Qwen3ForCausalLM(config).save_pretrained("other")
        write_tokenizer(Path("other"), template=CHATML)
    done = lorarl(*words)
    assert done.exit_code == 1
    assert message in done.output
    assert not Path("m").exists()
