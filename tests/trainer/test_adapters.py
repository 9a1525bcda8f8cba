"""`lorarl evaluate`, `chat` and `merge` on a real base model and a real PEFT adapter."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from lorarl_trainer.cli import main
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.samples.statistics import eval_metrics
from lorarl_trainer.trained_adapters.model import Decoding, load_adapted
from lorarl_trainer.trained_adapters.source import find_adapter
from support.tiny_tokenizers import CHATML, write_tokenizer

ROWS = [{"prompt": f"say {word}", "answer": word, "level": number} for number, word in enumerate("abcd")]
REWARD = """
def score(prompt, completion, answer, row):
    assert row["answer"] == answer
    return float(len(completion) % 3 == 0)

def parts(prompt, completion, answer, row):
    if answer == "d":
        raise ValueError("no d")
    return {"score": len(completion) / 100, "length": len(completion)}
"""
JOB = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {name: thirds}
spec:
  model: {uri: "file:base"}
  adapter: {rank: 4, alpha: 64, targetModules: [q_proj, v_proj, down_proj]}
  reward: {function: "thirds:score"}
  data:
    train: {uri: "file:rows.jsonl"}
    eval: {uri: "file:gone.jsonl"}
    evals:
      - {name: hard, uri: "file:rows.jsonl", temperature: 0.7, samples: 4, passAtK: [1, 2], passReward: 0.1,
         reward: {function: "thirds:parts"}}
      - {name: easy, uri: "file:rows.jsonl"}
  rollout: {maxResponseTokens: 6}
  checkpoint: {uri: "file:checkpoints", keepBest: {eval: hard, passAtK: 2}}
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
    shutil.copytree(folder / "adapter", folder / "checkpoints" / "thirds" / "iter_0000002" / "lora_adapter")
    uri = (folder / "checkpoints" / "thirds" / "iter_0000002" / "lora_adapter").as_uri()
    best = {"step": 2, "uri": uri, "metric": "eval_hard/pass_at_2", "value": 0.5}
    summary = {
        "adapter_uri": uri.replace("2/lora", "4/lora"),
        "best": best,
        "manifest": JOB,
        "manifest_folder": str(folder),
    }
    (folder / "run").mkdir()
    (folder / "run" / "run_summary.json").write_text(json.dumps(summary))
    shutil.copytree(folder / "run", folder / "out" / "thirds")
    return folder


def lorarl(*words: str | Path, said: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=said)


def base_that_generates(folder: Path, into: Path, **settings: object) -> Path:
    """A copy of the base model whose generation_config.json has these settings."""
    base = shutil.copytree(folder / "base", into / "base")
    (base / "generation_config.json").write_text(json.dumps(settings))
    return base


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


def test_without_a_job_and_a_chat_template_prompts_are_asked_as_they_are(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job says so, and a hint to change a job could not be followed."""
    monkeypatch.chdir(folder)
    shutil.copytree(folder / "base", tmp_path / "plain")
    write_tokenizer(tmp_path / "plain", template=None)
    assert not AutoTokenizer.from_pretrained(tmp_path / "plain").chat_template
    (folder / "job.yaml").write_text(JOB)
    words = ("evaluate", "adapter", "--base", tmp_path / "plain", "--data", "rows.jsonl", "--reward", "thirds:score")
    done = lorarl(*words, "--max-tokens", "6", "--json")
    assert done.exit_code == 0, done.output
    assert "prompts are used as they are" in done.stderr
    with_job = lorarl(*words, "--max-tokens", "6", "--job", "job.yaml")
    assert "Set spec.data.chatTemplate to false" in with_job.output
    plain = lorarl(*words, "--max-tokens", "6", "--json", "--job", "job.yaml", "--set", "spec.data.chatTemplate=false")
    assert json.loads(plain.stdout)["adapter_scores"] == json.loads(done.stdout)["adapter_scores"], plain.output


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
    assert "2 rows of file:rows.jsonl, 3 samples at temperature 1, reward thirds:score" in people
    assert "pass@3" in people and "95% intervals; a completion passes with 1" in people


def test_an_evaluation_of_the_job_is_made_by_name_as_the_run_makes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its rows, its own reward and components, its sampling and pass@k, on the checkpoint that keepBest chose."""
    monkeypatch.chdir(folder)
    found = json.loads(lorarl("evaluate", "run", "--eval", "hard", "--json").stdout)
    assert found["checkpoint"] == "the best checkpoint, of step 2: eval_hard/pass_at_2 0.5"
    assert (found["evaluation"], found["data"], found["reward"]) == ("hard", "file:rows.jsonl", "thirds:parts")
    assert (found["samples"], found["temperature"], found["passing"]) == (4, 0.7, 0.1)
    scores = np.array(found["adapter_scores"], dtype=float)
    assert np.isnan(scores[3]).all(), "a completion that cannot be scored is left out"
    mean, metrics = eval_metrics(scores, [1, 2], 0.1)
    assert found["score"]["adapter"] == {"mean": mean, "low": metrics["score_low"], "high": metrics["score_high"]}
    assert found["pass@2"]["adapter"]["mean"] == metrics["pass_at_2"]
    assert found["components"]["reward/length"]["adapter"] == pytest.approx(100 * np.nanmean(scores))
    said = lorarl("evaluate", "run", "--eval", "hard")
    assert "warning: 4 completions of base could not be scored and are left out (exception): ValueError" in said.stderr
    for part in (
        "4 rows of hard (file:rows.jsonl), 4 samples at temperature 0.7, reward thirds:parts",
        "adapter  run (the best checkpoint, of step 2: eval_hard/pass_at_2 0.5)",
        "note     this evaluation chose the checkpoint, which flatters it",
        "note     the job has other evaluations, for --eval: easy",
        "reward/length",
        "a completion passes with 0.1",
    ):
        assert part in said.stdout
    once = json.loads(
        lorarl("evaluate", "run", "--eval", "hard", "--samples", "1", "--temperature", "0", "--json").stdout
    )
    assert (once["samples"], once["temperature"], "pass@2" in once) == (1, 0.0, False)


def test_a_chat_answers_each_line_by_both(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = lorarl("chat", "adapter", "--max-tokens", "6", said="hello\n/reset\nhello\n/quit\nnever\n")
    assert done.exit_code == 0, done.output
    first, second = done.stdout.split("base:    ")[1:]
    assert first == second, "the conversation was forgotten"
    base, adapter = first.split("adapter: ")
    assert base.strip() != adapter.strip()


def test_penalties_of_the_base_model_are_not_applied(folder: Path, tmp_path: Path) -> None:
    """Qwen2.5-0.5B-Instruct has a repetition penalty of 1.1, which neither rollouts nor the run's evaluations apply."""
    penalties = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "do_sample": True, "min_p": 1.0}
    base = base_that_generates(folder, tmp_path, **penalties)
    model = load_adapted(find_adapter(str(folder / "adapter"), None, (), str(base)))
    prompt = model.tokenizer("say a")["input_ids"]

    def best() -> list[int]:
        """The best token everywhere, without generate()."""
        ids = list(prompt)
        with torch.inference_mode():
            while len(ids) < len(prompt) + 24 and ids[-1] not in model.stops:
                ids.append(int(model.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]

    def greedy() -> str:
        return model.generate([prompt], Decoding(1, 24, None))[0][0].text

    found = best()
    pairs = list(pairwise(found))
    assert len(set(pairs)) < len(pairs), "a penalty would change this text"
    assert greedy() == model.tokenizer.decode(found, skip_special_tokens=True)
    with model.plain():
        assert greedy() == model.tokenizer.decode(best(), skip_special_tokens=True)
    drawn = model.generate([prompt], Decoding(4, 24, Sampling()))[0]
    assert len({answer.text for answer in drawn}) > 1, "min_p of 1 leaves the best token alone"


def test_an_unknown_command_of_a_chat_is_no_prompt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    done = lorarl("chat", "adapter", "--max-tokens", "6", said="/help\n/usr/bin is a folder\n/no_think hello\n")
    assert done.exit_code == 0, done.output
    said, *answers = done.stdout.split("base:    ")
    assert said == "/help is no command. /reset forgets the conversation, /quit ends.\n"
    assert len(answers) == 2


def test_a_row_or_a_file_of_several_lines_is_one_question(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("prompt.txt").write_text("say b\n")
    Path("two-lines.txt").write_text("say\nb\n")
    asked = ("chat", "run", "--max-tokens", "6")
    row, file, lines = (
        lorarl(*asked, *more)
        for more in (("--row", "2"), ("--prompt-file", "prompt.txt"), ("--prompt-file", "two-lines.txt"))
    )
    assert row.exit_code == file.exit_code == lines.exit_code == 0, (row.output, file.output, lines.output)
    assert row.stdout == file.stdout == lorarl(*asked, said="say b").stdout, "row 2 says b"
    assert lines.stdout.count("base:") == 1, "one question"
    assert "--row: got 9, expected the number of a row of file:rows.jsonl. Name one from 1 to 4." in (
        lorarl(*asked, "--row", "9").output
    )
    assert "--row: got 2 of an unknown job, expected the job that has the row. Name it with --job." in (
        lorarl("chat", "adapter", "--row", "2").output
    )


ECHO = """
class Echo:
    def reset(self, row):
        self.turns, self.fails = 0, row["answer"] == "d"
        return f"Begin with {row['answer']}."

    def step(self, text):
        self.turns += 1
        if self.fails: raise ValueError("no d")
        return {"text": f"That was turn {self.turns}.", "reward": len(text) / 100}
"""


def test_a_row_of_an_environment_is_played_by_both(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("echo.py").write_text(ECHO)
    job = yaml.safe_load(JOB)
    job["spec"] |= {
        "environment": {"function": "echo:Echo", "maxTurns": 2, "maxTurnTokens": 5},
        "rollout": {"maxPromptTokens": 64, "maxResponseTokens": 80, "stop": ["a", "e"]},
        "data": {"train": {"uri": "file:rows.jsonl"}},
        "checkpoint": {"uri": "file:checkpoints"},
    }
    del job["spec"]["reward"]
    Path("echo.yaml").write_text(yaml.safe_dump(job))
    done = lorarl("chat", "adapter", "--job", "echo.yaml", "--row", "2")
    assert done.exit_code == 0, done.output
    opening, said = done.stdout.split("base:    ")
    assert opening.splitlines() == [
        "The episode begins with:",
        "  | <|im_start|>user",
        "  | Begin with b.<|im_end|>",
        "  | <|im_start|>assistant",
    ]
    base, rest = said.split("adapter: ")
    adapter, last = rest.split("reward:  ")
    assert base != adapter
    assert re.fullmatch(r"base [0-9.]+, after [12] turns? \([a-z]+\); adapter [0-9.]+, after [12] turns? .*\n", last)
    failed = lorarl("chat", "adapter", "--job", "echo.yaml", "--row", "4")
    assert "spec.environment: got no score for any of 1 completions (1 x exception: step: ValueError: no d" in str(
        failed.exception
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
        (("evaluate", "run"), "spec.data.eval.uri: got file:gone.jsonl, which does not exist"),
        (("evaluate", "thirds"), "spec.data.eval.uri: got file:gone.jsonl, which does not exist"),
        (
            ("evaluate", "run", "--eval", "hardd"),
            "--eval: got hardd, expected the name of an evaluation in data.evals (hard, easy)",
        ),
        (
            ("evaluate", "run", "--eval", "hard", "--data", "rows.jsonl"),
            "--eval: got hard together with --data, expected",
        ),
        (
            ("evaluate", "run", "--data", "rows.jsonl", "--samples", "2", "--temperature", "0"),
            "--samples: got 2 with temperature 0, which makes the same completion each time, expected",
        ),
        (("merge", "run", "--checkpoint", "newest", "--out", "m"), "thirds/iter_0000004 is gone, expected"),
        (("chat", "adapter", "--checkpoint", "best"), "--checkpoint: got best, but adapter is one adapter, expected"),
        (("evaluate", "unfinished", "--checkpoint", "best"), "--checkpoint: got best, but unfinished chose none"),
        (("evaluate", "unfinished"), "unfinished: this run has published no adapter yet."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_named_and_nothing_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # otherwise it is asked for `gone` often
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
