"""Events of a run, as the loop emits them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lorarl_trainer.progress import (
    AdapterSummary,
    EvalDone,
    Event,
    RunFinished,
    RunStarted,
    Sampled,
    ScoredSample,
    StartedUp,
    StepDone,
)
from lorarl_trainer.timing import Span

MODULES = tuple(
    f"model.layers.{n}.{part}" for n in range(4) for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj")
)
MANIFEST = "apiVersion: lorarl.io/v1alpha1\nkind: LoRARLJob\nmetadata: {name: addition}\n"


def run_started(
    out_dir: Path, total_steps: int = 3, resumed_from_step: int | None = None, algorithm: str = "grpo"
) -> RunStarted:
    adapter = AdapterSummary(
        type="canonical_lora",
        rank=16,
        alpha=32,
        modules=MODULES,
        trainable_parameters=225_280,
        total_parameters=1_022_080,
    )
    return RunStarted(
        job="addition",
        base_model="/models/tiny",
        algorithm=algorithm,
        adapter=adapter,
        total_steps=total_steps,
        resumed_from_step=resumed_from_step,
        out_dir=str(out_dir),
        manifest=MANIFEST,
    )


def grpo_step(step: int, total: int = 3, reward: float | None = None, pace: float = 1.0) -> StepDone:
    noise, more_noise = random.Random(step), random.Random(f"more {step}")
    grown = 1 - math.exp(-3 * step / total)
    return StepDone(
        step=step,
        total_steps=total,
        adapter_version=step,
        metrics={
            "loss": 0.02 * noise.uniform(-1, 1),
            "grad_norm": noise.uniform(0.2, 0.6),
            "learning_rate": 5e-4,
            "clipped_share": 0.002 * more_noise.random(),
            "rollout_kl": 1e-9 * more_noise.random(),
            "entropy": 0.8 - 0.6 * grown + more_noise.uniform(-0.03, 0.03),
            "reward_mean": min(1.0, 0.34 + 0.63 * grown + noise.uniform(-0.05, 0.05)) if reward is None else reward,
            "reward_std": 0.4,
            "reward_failures": 0,
            "signal_share": 0.75,
            "kl": 0.05 * grown * noise.uniform(0.9, 1.1),
            "mean_abs_logprob_diff": 1.3e-7 * noise.uniform(0.7, 1.5),
            "response_tokens_mean": 3.2 + 0.3 * grown * noise.uniform(0.9, 1.1),
            "truncated_share": 0.02 * (1 - grown),
        },
        tokens=2400,
        groups=8,
        completions=64,
        tokens_per_second=3600.0,
        seconds={
            "generate": 0.42 * pace,
            "reward": 0.01,
            "forward_backward": 0.2 * noise.uniform(0.9, 1.2) * pace,
            "optimizer": 0.004,
            "sync": 0.01,
            "checkpoint": 0.05 if step % 10 == 0 else 0.0,
            "other": 0.01,
        },
    )


def with_metrics(step: StepDone, **metrics: float) -> StepDone:
    """Return the step with other values of some metrics."""
    return replace(step, metrics={**step.metrics, **metrics})


def sft_step(step: int, total: int = 3) -> StepDone:
    return StepDone(
        step=step,
        total_steps=total,
        adapter_version=step,
        metrics={"loss": 1.5 * math.exp(-3 * step / total) + 0.2, "grad_norm": 0.5, "learning_rate": 1e-4},
        tokens=2400,
        tokens_per_second=9000.0,
        seconds={"forward_backward": 0.25, "optimizer": 0.004, "other": 0.01},
    )


def sampled(step: int, groups: int = 1, *, evaluation: bool = False) -> Sampled:
    """Return samples of a step: groups of 4, or single completions of an evaluation. Each is right every other time."""
    size = 1 if evaluation else 4
    samples = [
        ScoredSample(
            group=group,
            row=group + 1 if evaluation else 10 * step + group,
            prompt=f"{group}+{step}=",
            model_prompt=f"<|im_start|>user\n{group}+{step}=<|im_end|>\n",
            completion=f"completion {number} of step {step}: <b>{group + step}</b>",
            answer=str(group + step),
            reward=float(number % 2),
            advantage=None if evaluation else number % 2 - 0.5,
            tokens=3 + number,
            truncated=number == 3,
        )
        for group in range(groups)
        for number in range(size)
    ]
    return Sampled(step=step, samples=tuple(samples), evaluation=evaluation)


def grpo_run(out_dir: Path, total: int = 3, every: int = 10) -> list[Event]:
    """Return a whole run: start, first evaluation, steps with an evaluation after every `every` of them, end."""

    def evaluation(step: int) -> EvalDone:
        return EvalDone(step=step, rows=512, score=0.3 + 0.65 * (1 - math.exp(-4 * step / total)), seconds=0.3)

    steps: list[Event] = []
    for step in range(1, total + 1):
        steps.append(grpo_step(step, total))
        if step % every == 0 or step == total:
            steps.append(evaluation(step))
    return [run_started(out_dir, total), evaluation(0), *steps, run_finished(out_dir, total)]


def started_up() -> StartedUp:
    """Return a start in which the driver reads data while Ray starts."""
    driver = [
        Span("process", "driver", 100.0, 101.0),
        Span("Ray", "driver", 101.0, 105.0),
        Span("data", "driver", 101.0, 108.0),
    ]
    worker = [
        Span("imports", "worker 0", 105.5, 118.0),
        Span("imports/torch", "worker 0", 105.5, 108.0),
        Span("engine", "worker 0", 118.0, 140.0),
        Span("engine/graphs", "worker 0", 130.0, 136.0),
        Span("first sync", "worker 0", 140.0, 140.1),
        Span("first generation", "worker 0", 140.1, 143.0),
        Span("first update", "worker 0", 143.0, 145.0),
    ]
    return StartedUp(parts=(*driver, *worker), first_token=140.5, first_update=145.0)


def run_finished(out_dir: Path, step: int) -> RunFinished:
    uri = f"file://{out_dir}/checkpoints/addition/iter_{step:07}/lora_adapter"
    return RunFinished(state="succeeded", step=step, adapter_uri=uri, total_seconds=step * 0.7 + 25)


class Recorder:
    """A sink that keeps its events. A hook can make it fail."""

    def __init__(self, name: str = "recorder", on_event: Callable[[Event], None] | None = None) -> None:
        self.name = name
        self.events: list[Event] = []
        self.closed = False
        self._hook = on_event

    def on_event(self, event: Event) -> None:
        if self._hook is not None:
            self._hook(event)
        self.events.append(event)

    def close(self) -> None:
        self.closed = True

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]
