"""The rows of the benchmark of several GPUs: each is a step on so many, and what should be reached. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from side_by_side.work import WORKS, Work

COUNTS = (1, 2, 4, 8)
type Kind = Literal["linear", "layout", "attention", "peer", "sync", "pods", "none"]


@dataclass(frozen=True)
class Goal:
    """What a row should reach.

    Attributes:
        kind: linear: share of the throughput per GPU of the group's first row. layout: MFU, in a step within 5% of the
            best layout of as many GPUs. attention: MFU with attention's operations. peer: how many times TRL's step
            takes as long as lorarl's. sync: milliseconds of an adapter's way to the engines. pods: seconds to the first
            token; and from a lost pod to the next step. none: it should run.
        bound: the least of a share or a ratio, the most of milliseconds or seconds.
    """

    kind: Kind
    bound: float = 0.0


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        group: rows that are compared with each other.
        gpus: how many it takes, or on a CPU its workers.
        variant: what distinguishes it from another row of its group on as many GPUs.
        settings: for `--set`.
        system: pods is bench_gpu_cluster.py.
    """

    group: str
    gpus: int
    size: str
    work: Work
    settings: tuple[str, ...] = ()
    variant: str = ""
    system: Literal["lorarl", "trl", "pods"] = "lorarl"
    goal: Goal | None = None

    @property
    def name(self) -> str:
        """The name for `--rows` and in the raw figures."""
        return "-".join(part for part in (self.group, str(self.gpus), self.variant) if part)


EQUAL, RAGGED, LARGE, LONG = (WORKS[name][0] for name in ("equal", "ragged", "large", "128k"))
EXPERTS = Work(prompts=32, prompt_tokens=256, vllm_share=None)
"""That of docs/models.md: 256 answers of 256 tokens for each GPU."""
TAUGHT = Work(prompts=256, group=1, prompt_tokens=256, vllm_share=None, supervised=True)
"""For mixtures whose experts do not fit one GPU, on which each engine has them all."""
APART = replace(EQUAL, vllm_share=None)
"""Separate engines have all memory of their GPUs."""
SHORT = Work(prompts=4, group=4, prompt_tokens=32, response_tokens=16)


def tensor_parallel(ranks: int) -> tuple[str, ...]:
    return (f"spec.trainer.tensorParallelSize={ranks}",)


def context_parallel(ranks: int) -> tuple[str, ...]:
    return (f"spec.trainer.contextParallelSize={ranks}",)


def expert_parallel(ranks: int) -> tuple[str, ...]:
    return (f"spec.trainer.expertParallelSize={ranks}",) if ranks > 1 else ()


def engines(count: int) -> tuple[str, ...]:
    """Settings of one GPU that trains, and so many others that generate."""
    return ("spec.cluster.gpusPerNode=1", f"spec.rollout.separateEngines.count={count}")


def data_parallel(group: str, size: str, work: Work, bound: float) -> list[Row]:
    """Return a step on 1 to 8 GPUs, with as many times the prompts."""
    goals = {COUNTS[-1]: Goal("linear", bound)}
    return [Row(group, gpus, size, work.times(gpus), goal=goals.get(gpus)) for gpus in COUNTS]


def large(gpus: int, others: Iterable[int]) -> list[Row]:
    """Return the step of 70B as it is planned, and with the layouts that are not."""
    row = Row("70b", gpus, "70b", LARGE.times(gpus // 4), goal=Goal("layout", 0.5))
    return [row, *(replace(row, settings=tensor_parallel(n), variant=f"tp{n}", goal=None) for n in others)]


ROWS = (
    *data_parallel("7b-equal", "7b", EQUAL, 0.95),
    *(Row("trl", gpus, "7b", EQUAL.times(gpus), system="trl", goal=Goal("peer", 2.5)) for gpus in COUNTS[1:]),
    *(Row("engines", gpus, "7b", APART, engines(gpus - 1), goal=Goal("sync", 10)) for gpus in COUNTS[1:]),
    *(
        Row("128k", gpus, "7b", LONG, context_parallel(gpus), goal=Goal("attention", 0.42) if gpus > 2 else None)
        for gpus in COUNTS[1:]
    ),
    Row("128k", 8, "7b", LONG, variant="nothing-set"),
    Row("pods", 8, "7b", EQUAL, ("spec.cluster.nodes=8",), system="pods", goal=Goal("pods", 60)),
    *data_parallel("7b-ragged", "7b-ragged", RAGGED, 0.9),
    *(
        Row("a3b", n, "a3b", EXPERTS.times(n), expert_parallel(n), goal=Goal("linear", 0.85) if n > 2 else None)
        for n in COUNTS
    ),
    *large(4, (4,)),
    *large(8, (4, 8)),
    Row("a22b", 8, "a22b", EXPERTS, expert_parallel(8), goal=Goal("none")),
    Row("a22b", 8, "a22b", TAUGHT, expert_parallel(8), "supervised", goal=Goal("none")),
)
"""Those of each model beside each other, since models are made for their rows."""

CPU_ROWS = (
    *(
        Row("cpu", n, "tiny-experts", SHORT.times(n), ("spec.cluster.gpusPerNode=0", *expert_parallel(n)))
        for n in COUNTS[:3]
    ),
    Row(
        "cpu",
        2,
        "tiny-experts",
        replace(TAUGHT, prompts=16, prompt_tokens=32, response_tokens=16),
        ("spec.cluster.gpusPerNode=0", *expert_parallel(2)),
        "supervised",
        goal=Goal("none"),
    ),
)
"""A trial of everything. On one machine without GPUs, workers are those that share something: here experts."""


def chosen_rows(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Return the rows of these names, or of these groups; all if there are none.

    Raises:
        ValueError: no row has a name.
    """
    known = {row.name for row in rows} | {row.group for row in rows}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"--rows: got {', '.join(unknown)}, expected some of {', '.join(sorted(known))}")
    return [row for row in rows if not names or {row.name, row.group} & set(names)]
