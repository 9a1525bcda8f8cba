"""What separate engines take of their GPUs, and how a step's time follows from theirs and the trainer's."""

from __future__ import annotations

import pytest

from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.choice import choose_plan
from lorarl_trainer.planning.choices_table import plan_table, plan_title
from lorarl_trainer.planning.separate import (
    plan_engine,
    processes_on_engines_host,
    processes_on_host,
    require_engine_fit,
    sequences_at_once,
)
from lorarl_trainer.planning.verdict import judge
from unit.trainer.planning.jobs import cpu_job, gpu_job
from unit.trainer.planning.shapes import LARGER, SHAPES, SMOLLM2

GB = 1_000_000_000
H200 = Gpu(150 * GB, 149 * GB, "NVIDIA H200", (9, 0))
L4 = Gpu(24 * GB, int(23.4 * GB), "NVIDIA L4", (8, 9))
MODELS = {name: sizes_of(config) for name, config in (SHAPES | LARGER).items()}
ENGINE = "rollout.separateEngines.count=1"
AHEAD = ("rollout.maxStaleness=1", "algorithm.correction={preset: decoupled_token_is}")


def test_an_engine_takes_its_share_of_its_gpu_and_nothing_of_the_trainers() -> None:
    spec = gpu_job(ENGINE, *AHEAD)
    engine = plan_engine(spec, MODELS["7B"], H200)
    assert engine is not None and engine.fits
    taken = {line.what: line.bytes for line in engine.lines}
    assert taken["vLLM's base model"] == pytest.approx(15.2 * GB, rel=0.02)
    assert engine.needed == int(0.9 * H200.total)
    assert "2 of rank 32" in next(line.source for line in engine.lines if line.what == "vLLM's adapters")
    trainer = choose_plan(spec, MODELS["7B"], H200).memory
    assert not any("vLLM" in line.what or line.what == "KV cache" for line in trainer.lines)


def test_a_split_engine_has_a_share_of_the_weights_on_each_gpu() -> None:
    spec = gpu_job("rollout.separateEngines.tensorParallelSize=2")
    whole, half = (plan_engine(one, MODELS["7B"], H200) for one in (gpu_job(ENGINE), spec))
    assert whole is not None and half is not None
    assert half.lines[1].bytes == pytest.approx(whole.lines[1].bytes / 2, rel=0.05)
    with pytest.raises(InputError, match=r"spec\.rollout\.separateEngines\.tensorParallelSize: got 3 for a model"):
        judge(gpu_job("rollout.separateEngines.tensorParallelSize=3"), SHAPES["7B"], H200)


def test_time_counts_the_slower_side_ahead_and_the_sum_in_turns() -> None:
    turns, ahead = (choose_plan(gpu_job(ENGINE, *more), MODELS["7B"], H200) for more in ((), AHEAD))
    assert turns.seconds is not None and ahead.seconds is not None
    assert turns.seconds.total == turns.seconds.generation + turns.seconds.training
    assert ahead.seconds.total == max(ahead.seconds.generation, ahead.seconds.training) < turns.seconds.total
    assert "which overlap" in plan_table(ahead) and "in turns: rollout.maxStaleness" in plan_table(turns)
    two = choose_plan(gpu_job("rollout.separateEngines.count=2"), MODELS["7B"], H200)
    assert two.seconds is not None and two.seconds.generation < turns.seconds.generation
    title = "memory of each GPU of 2 separate engine(s), on GPUs 1 to 2 of those that are visible:"
    assert title in plan_table(two) and plan_title(two.spec) == "plan for each of the trainer's GPUs:"


def test_an_engine_without_room_is_refused_with_what_gives_it_room() -> None:
    spec = gpu_job(ENGINE, "trainer.tensorParallelSize=4", gpus=4, response_tokens=1000)
    with pytest.raises(InputError, match=r"spec\.rollout\.separateEngines: .* GB on each GPU at the least") as no:
        judge(spec, LARGER["14B"], L4)
    assert "vLLM's base model" in str(no.value)
    assert "et spec.rollout.separateEngines.tensorParallelSize to 2" in str(no.value)


def test_an_engine_in_its_own_pod_is_judged_by_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gpu_job(ENGINE, "trainer.tensorParallelSize=4", gpus=4, response_tokens=1000)
    monkeypatch.setenv("LORARL_RUN_DIR", "/tmp/run")
    judge(spec, LARGER["14B"], L4)
    require_engine_fit(spec, MODELS["14B"], H200)
    with pytest.raises(
        InputError, match=r"spec\.rollout\.separateEngines: got an engine that needs .* GB on each"
    ) as no:
        require_engine_fit(spec, MODELS["14B"], L4)
    told = str(no.value)
    assert "podTemplateOverrides.engine, or raise spec.rollout.separateEngines.tensorParallelSize" in told
    assert "vLLM's base model" in told
    require_engine_fit(gpu_job("rollout.separateEngines.tensorParallelSize=2"), MODELS["14B"], L4)
    with pytest.raises(InputError, match="in its pod at the least"):
        require_engine_fit(cpu_job(ENGINE), MODELS["7B"], Host(8 * GB, 7 * GB))


def test_processes_on_a_cpu_share_its_memory() -> None:
    machine, model = Host(24 * GB, 20 * GB), sizes_of(SMOLLM2)
    alone, beside = (choose_plan(cpu_job(*more), model, machine) for more in ((), ("rollout.separateEngines.count=3",)))
    assert beside.memory.gpu.total == alone.memory.gpu.total // 4
    assert beside.separate is not None and beside.separate.gpu.total == machine.total // 4
    assert "memory of each of 3 separate engine(s):" in plan_table(beside)


def test_an_engine_has_its_share_of_all_steps_that_are_begun() -> None:
    assert sequences_at_once(gpu_job(ENGINE)) == 512
    assert sequences_at_once(gpu_job("rollout.separateEngines.count=3", *AHEAD)) == 342


def test_engines_in_their_own_pods_share_no_machine_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = cpu_job("rollout.separateEngines.count=3", "trainer.tensorParallelSize=2")
    monkeypatch.delenv("LORARL_RUN_DIR", raising=False)
    assert (processes_on_host(spec), processes_on_engines_host(spec)) == (5, 5)
    monkeypatch.setenv("LORARL_RUN_DIR", "/run")
    assert (processes_on_host(spec), processes_on_engines_host(spec)) == (2, 1)
