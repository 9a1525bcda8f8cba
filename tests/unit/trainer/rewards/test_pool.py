"""A user's reward function scores in processes of a pool: all samples at once, and a failure costs its sample alone."""

import asyncio
import math
import queue
import time
from pathlib import Path

import psutil
import pytest

from lorarl_api.v1alpha1 import RewardSpec
from lorarl_trainer.data.cells import Message
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.scorer import make_scorer, needs_answers
from lorarl_trainer.rewards.scores import ToScore
from unit.trainer.rewards.scoring import samples, score, score_parts, score_samples

pytestmark = pytest.mark.slow


def test_a_function_beside_the_manifest_scores_in_order(scorer):
    completions = ["x" * (i % 7) for i in range(100)]
    assert score(scorer("my_rewards:length"), *completions).rewards.tolist() == [i % 7 for i in range(100)]


def test_a_function_in_the_working_directory_is_found(tmp_path, monkeypatch):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "here.py").write_text("def score(prompt, completion, answer, row): return 3")
    monkeypatch.chdir(tmp_path)
    scorer = make_scorer(RewardSpec(function="package.here:score"), Path("/nowhere"), processes=1)
    assert score(scorer, "a").rewards.tolist() == [3]
    scorer.close()


def test_a_function_gets_prompt_completion_answer_and_row(scorer):
    sample = ToScore([{"role": "user", "content": "p"}], "c", None, {"level": 3})
    assert score_samples(scorer("my_rewards:arguments"), [sample]).rewards.tolist() == [1]


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_a_function_changes_its_arguments_for_itself_alone(scorer, tmp_path, keyword):
    (tmp_path / "changes.py").write_text(
        f"{keyword} score(prompt, completion, answer, row):\n"
        "    prompt.append({'role': 'assistant', 'content': completion})\n"
        "    row['parts'].append(completion)\n"
        "    return len(prompt) + 10 * len(row['parts'])\n"
    )
    prompt: list[Message] = [{"role": "user", "content": "p"}]
    row = {"prompt": prompt, "parts": []}
    group = [ToScore(prompt, completion, None, row) for completion in "abcdefgh"]
    assert score_samples(scorer("changes:score", processes=1), group).rewards.tolist() == [12] * 8
    assert (prompt, row["parts"]) == ([{"role": "user", "content": "p"}], [])


@pytest.mark.usefixtures("children_ignored")
def test_a_program_that_a_function_runs_keeps_its_exit_code(scorer, tmp_path):
    (tmp_path / "runs.py").write_text(
        "import subprocess\n"
        "def score(prompt, completion, answer, row):\n"
        "    return subprocess.run(['sh', '-c', completion], check=False).returncode\n"
    )
    assert score(scorer("runs:score"), "exit 3", "true").rewards.tolist() == [3, 0]


def test_an_object_with_an_async_call_is_async(scorer, tmp_path):
    (tmp_path / "judge.py").write_text(
        "class Judge:\n"
        "    async def __call__(self, prompt, completion, answer, row): return len(completion)\n"
        "score = Judge()\n"
        "def decorated(*arguments): return score(*arguments)\n"
    )
    assert score(scorer("judge:score"), "a", "bb").rewards.tolist() == [1, 2]
    with pytest.raises(InputError, match=r"returned coroutine .* with async def"):
        score(scorer("judge:decorated"), "a")


def test_further_parameters_with_defaults_are_fine(scorer):
    assert score(scorer("my_rewards:defaults"), "a").rewards.tolist() == [2]


def test_scoring_processes_stay_small(scorer, tmp_path):
    (tmp_path / "light.py").write_text(
        "import sys\ndef score(*arguments): return float(not {'numpy', 'torch', 'asyncio'} & set(sys.modules))"
    )
    others = set(psutil.Process().children())
    small = scorer("light:score", processes=1)
    assert score(small, "a").rewards.tolist() == [1]
    [process] = set(psutil.Process().children()) - others
    memory = process.memory_info().rss
    print(f"a scoring process: {memory / 2**20:.1f} MiB")
    assert memory < 32 * 2**20


@pytest.mark.parametrize(
    ("bad", "cause", "message"),
    [
        ("raise", "exception", "KeyError: 'level' (my_rewards.py, line 12)"),
        ("lines", "exception", "ValueError: first second (my_rewards.py, line 13)"),
        ("leave", "exception", "SystemExit: 3"),
        ("exit", "crash", "exited with code 3"),
        ("segfault", "crash", "SIGSEGV"),
        ("hang", "timeout", "took more than 3 s"),
        ("nan", "non_finite", "returned nan"),
        ("inf", "non_finite", "returned -inf"),
        ("huge", "non_finite", "returned int, which is too large for a float"),
        ("large", "non_finite", "returned 1e+31, which is beyond 1e+30"),
        ("none", "wrong_type", "returned None: some way through the function ends without a return"),
        ("text", "wrong_type", "returned str '0.5'"),
    ],
)
@pytest.mark.parametrize("function", ["misbehave", "misbehave_async"])
def test_a_sample_that_cannot_be_scored_costs_itself_only(scorer, function, bad, cause, message):
    scores = score(
        scorer(f"my_rewards:{function}", timeout_seconds=3.0), *["int", "true"] * 5, bad, *["true", "int"] * 5
    )
    assert math.isnan(scores.rewards[10])
    assert scores.rewards[[*range(10), *range(11, 21)]].tolist() == [2, 1] * 5 + [1, 2] * 5
    assert {cause: failure.count for cause, failure in scores.failures.items()} == {cause: 1}
    assert message in scores.failures[cause].first_message


def test_failures_are_counted_by_cause_with_the_first_message_of_each(scorer):
    scores = score(
        scorer("my_rewards:misbehave", timeout_seconds=3.0),
        "int",
        "none",
        "exit",
        "text",
        "hang",
        "wait",
        "exit",
        "nan",
        "int",
    )
    counts = {cause: failure.count for cause, failure in scores.failures.items()}
    assert counts == {"wrong_type": 2, "crash": 2, "timeout": 2, "non_finite": 1}
    assert scores.failures["wrong_type"].first_message.startswith("returned None: ")
    assert [math.isnan(reward) for reward in scores.rewards] == [False] + [True] * 7 + [False]


def test_a_function_scores_on_after_a_hang(scorer):
    hanging = scorer("my_rewards:misbehave", timeout_seconds=3.0, processes=1)
    assert score(hanging, "hang", "int").failures["timeout"].count == 1
    assert score(hanging, "int", "true").rewards.tolist() == [2, 1]


def test_a_process_killed_between_steps_is_replaced(scorer):
    idle = scorer("my_rewards:length", processes=1)
    score(idle, "a")
    psutil.Process().children()[0].kill()
    scores = score(idle, "abc", "ab")
    assert scores.rewards[1] == 2
    assert sum(failure.count for failure in scores.failures.values()) <= 1  # it may die a moment after it was looked at


def test_async_functions_run_many_at_once(scorer):
    # The barrier opens only for two hundred calls that are under way together.
    assert score(scorer("my_rewards:meet", processes=1), *["a"] * 200, row={"calls": 200}).rewards.tolist() == [1] * 200


def test_async_calls_of_parts_that_come_later_join_those_under_way(scorer):
    parts = [samples(*["a"] * size, row={"calls": 200}) for size in (50, 1, 100, 49)]
    scores = score_parts(scorer("my_rewards:meet", processes=1), *parts)
    assert [each.rewards.tolist() for each in scores] == [[1] * len(part) for part in parts]


def test_a_slow_judge_delays_a_step_only_by_the_last_completion(scorer):
    latency, parts, apart = 1.0, 10, 0.05
    judge = scorer("my_rewards:judge", processes=1)
    score(judge, "0.01")
    start = time.perf_counter()
    score_parts(judge, *[samples(*[str(latency)] * 20)] * parts, seconds=apart)
    took, last_arrival = time.perf_counter() - start, (parts - 1) * apart
    print(
        f"{parts} parts within {last_arrival:.2f} s, {latency:g} s per call: {took:.2f} s; "
        f"in turn they would take {parts * latency:g} s"
    )
    assert last_arrival + latency <= took < parts * latency


def test_a_sync_function_scores_parts_that_come_later_beside_a_slow_sample(scorer, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    gated = scorer("my_rewards:gated", timeout_seconds=100, processes=2)  # the gate ends it, not the limit

    async def run() -> list[list[float]]:
        slow = asyncio.create_task(gated.score(samples("gate", row={"gate": str(gate)})))
        others = [await gated.score(samples(*["a"] * 30, row={"gate": str(gate)})) for _ in range(3)]
        assert not slow.done()
        gate.unlink()
        return [[outcome.value for outcome in outcomes] for outcomes in (await slow, *others)]

    assert asyncio.run(run()) == [[1], [1] * 30, [1] * 30, [1] * 30]


@pytest.mark.parametrize(
    ("function", "bad"),
    [("misbehave", "hang"), ("misbehave", "exit"), ("misbehave_async", "hang"), ("misbehave_async", "exit")],
)
def test_a_sample_that_ends_its_process_costs_no_sample_of_another_part(scorer, function, bad):
    parts = [samples("int", bad, "true"), samples(*["int"] * 20), samples(bad, "true")]
    scores = score_parts(scorer(f"my_rewards:{function}", timeout_seconds=3.0), *parts)
    assert [[None if math.isnan(reward) else reward for reward in each.rewards] for each in scores] == [
        [2, None, 1],
        [2] * 20,
        [None, 1],
    ]


def test_parts_wait_for_a_function_that_holds_the_interpreter(scorer):
    """They are scored after it."""
    first, second = (
        ["backtrack"] + ["int"] * 200,
        ["long" + "x" * (100_000 + i) for i in range(20)],
    )  # more than the connection holds
    holding = scorer("my_rewards:misbehave_async", timeout_seconds=2.0, processes=1)
    score(holding, "int")
    start = time.perf_counter()
    scores = score_parts(holding, samples(*first), samples(*second), seconds=0.1)
    assert time.perf_counter() - start < 60, (
        "it is ended at the limit, and not by its own clock for all that it was given: 420 s"
    )
    assert math.isnan(scores[0].rewards[0])
    assert scores[1].rewards.tolist() == [100_004 + i for i in range(20)]
    assert scores[0].rewards[1:].tolist() == [2] * 200


def test_async_calls_past_the_limit_are_left_out_and_cost_no_process(scorer):
    waiting = scorer("my_rewards:misbehave_async", timeout_seconds=3.0, processes=1)
    score(waiting, "int")
    before = psutil.Process().children()
    scores = score(waiting, *["int", "wait"] * 20)
    assert scores.failures["timeout"].count == 20
    assert psutil.Process().children() == before


def test_a_step_in_which_everything_fails_stops_the_run_and_says_why(scorer):
    with pytest.raises(InputError) as caught:
        score(scorer("my_rewards:misbehave"), *["raise"] * 5, "none")
    assert caught.value.field == "spec.reward.function"
    assert "no score for any of 6 completions (5 x exception: KeyError: 'level'" in caught.value.got


@pytest.mark.parametrize(
    ("function", "got", "hint"),
    [
        ("my_reward:length", "there is no module my_reward", "Did you mean my_rewards? Otherwise put my_reward into "),
        ("my_rewards.sub:length", "there is no module my_rewards.sub", "or install its package: lorarl env add"),
        ("elsewhere:length", "there is no module elsewhere", "Put elsewhere into "),
        ("my_rewards.py:length", "which names a file", "Name its module: my_rewards:length."),
        ("my_rewards:size", "my_rewards.py) has no such function", "length"),
        ("my_rewards:number", "has an object of type int of this name", "Name one of its functions ("),
        (
            "constant:score",
            "has an object of type float of this name",
            "Define it as score(prompt, ",
        ),
        ("importing:scor", "has no such function", "Name one of its functions (score)."),
        ("passing_on:scor", "has no such function", "Name one of its functions (dumps)."),
        ("lazy:score", "which is a generator and returns no number", "Use return."),
        ("my_rewards:wrong_signature", "(prompt, completion) in ", "wrong_signature(prompt, completion, answer, row)"),
        ("broken:score", "ZeroDivisionError: division by zero (broken.py, line 1)", "Fix the module"),
        ("unparsable:score", "SyntaxError: ", "Fix the module"),
        ("needy:score", "No module named 'not_there'", "Install the package of not_there: lorarl env add PACKAGE"),
        ("deadly:score", "exited with code 7", "Fix the module"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_before_training(scorer, tmp_path, function, got, hint):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "unparsable.py").write_text("def score(:")
    (tmp_path / "needy.py").write_text("import not_there")
    (tmp_path / "constant.py").write_text("score = 1.0")
    (tmp_path / "lazy.py").write_text("def score(prompt, completion, answer, row): yield 1.0")
    (tmp_path / "importing.py").write_text("from json import dumps\ndef score(*row): return 1.0")
    (tmp_path / "passing_on.py").write_text("from json import dumps")
    (tmp_path / "deadly.py").write_text("import os; os._exit(7)")
    with pytest.raises(InputError) as caught:
        asyncio.run(scorer(function, processes=1).ready())
    assert caught.value.field == "spec.reward.function"
    assert got in caught.value.got
    assert hint in caught.value.hint
    assert "site-packages" not in caught.value.hint, "only folders that are a user's"


def test_a_module_that_imports_forever_is_reported_with_its_line(tmp_path):
    (tmp_path / "endless.py").write_text("import time\nwhile True:\n    time.sleep(0.01)\n")
    warned: queue.SimpleQueue[str] = queue.SimpleQueue()
    spec = RewardSpec(function="endless:score")
    scorer = make_scorer(spec, tmp_path, processes=1, output=Output(warn=warned.put))
    scorer.warm_up()
    said = warned.get(timeout=60)
    scorer.close()
    assert (
        "spec.reward.function: endless:score: its module has been importing for 3 s and is at endless.py, line " in said
    )
    assert "Move slow work out of the module's top level" in said


def test_the_log_of_what_functions_print_is_cut_and_says_so(tmp_path):
    (tmp_path / "chatty.py").write_text(
        "def score(prompt, completion, answer, row):\n    print(completion, '.' * 1000)\n    return 1.0\n"
    )
    log = tmp_path / "logs" / "rewards.log"
    scorer = make_scorer(RewardSpec(function="chatty:score"), tmp_path, processes=1, output=Output(log))
    score(scorer, *map(str, range(100)))
    Output(log, most_bytes=4096).trim()
    score(scorer, "last")
    scorer.close()
    older = log.with_name("rewards.log.1").read_text()
    assert len(older) == 4096 and "\n99 ..." in older
    assert log.read_text() == (
        "[lorarl cut this log at 4,096 bytes; what came before is in rewards.log.1]\nlast " + "." * 1000 + "\n"
    )


def test_no_samples_have_no_scores(scorer):
    assert score(scorer("my_rewards:length")).rewards.tolist() == []


def test_256_samples_take_a_fraction_of_a_step_once_warm(scorer):
    warm = scorer("my_rewards:length")
    warm.warm_up()

    async def times() -> list[float]:
        step = samples(*["x" * 1000] * 256, row={"question": "y" * 300})
        await warm.ready()
        took = []
        end = time.perf_counter() + 60
        while len(took) < 10 or (min(took) >= 0.1 and time.perf_counter() < end):
            start = time.perf_counter()
            await warm.score(step)
            took.append(time.perf_counter() - start)
        return took

    took = sorted(asyncio.run(times()))
    print(f"256 samples: {took[0] * 1e3:.1f} ms at best, {took[5] * 1e3:.1f} ms in the middle")
    assert took[0] < 0.1


def test_warming_up_does_not_wait(scorer, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    waits = f"while Path({str(gate)!r}).exists(): time.sleep(0.005)"
    (tmp_path / "slow_to_import.py").write_text(
        f"import time\nfrom pathlib import Path\n{waits}\nfrom my_rewards import length\n"
    )
    warming = scorer("slow_to_import:length", processes=4)
    warming.warm_up()
    gate.unlink()
    assert score(warming, "abc").rewards.tolist() == score(scorer("my_rewards:length"), "abc").rewards.tolist()


def test_only_functions_may_do_without_answers():
    assert [needs_answers(RewardSpec(type="numeric")), needs_answers(RewardSpec(function="a:b"))] == [True, False]
