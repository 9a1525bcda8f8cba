"""`lorarl run --dry-run`: all checks that need no worker, and what the run would do, in seconds. No Ray, no weights."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_trainer.checkpoint.identity import other_inputs
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.dry_run.episode_trial import episode_lines, hasty_environment, try_episode
from lorarl_trainer.dry_run.reward_trial import hasty, looks_wrong, printed_lines, trial_lines, try_reward
from lorarl_trainer.dry_run.row_as_seen import row_lines
from lorarl_trainer.dry_run.store_outlook import steps_left, store_lines
from lorarl_trainer.dry_run.teacher_trial import try_teacher
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.launch import inputs
from lorarl_trainer.launch.places import require_places
from lorarl_trainer.launch.preparation import UNPUBLISHED, JudgedModel, prepare
from lorarl_trainer.launch.provenance import provenance
from lorarl_trainer.launch.resumption import newest_checkpoint
from lorarl_trainer.launch.runtime import local_runtime
from lorarl_trainer.launch.unusual import unusual_settings
from lorarl_trainer.lora.config import adapter_kind
from lorarl_trainer.lora.experts import is_expert
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.choices_table import plan_table, plan_title
from lorarl_trainer.planning.duration import SHORT, StepTime, arithmetic_speed, step_time
from lorarl_trainer.progress import METRICS, duration, read_rows, show_downloads
from lorarl_trainer.progress.console import of_experts
from lorarl_trainer.progress.metrics_file import step_seconds
from lorarl_trainer.progress.trackers import trackers
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.scorer import Scorers, open_scorers
from lorarl_trainer.rewards.source import fetched_sources
from lorarl_trainer.storage.retries import hasty_stores
from lorarl_trainer.storage.secrets import read_secrets
from lorarl_trainer.timing import StartClock

SCORED_ROWS = 4
_ANSWERS_COUNTED = 200
_LONGEST = 100
NOTHING_HELD_OUT = (
    "warning: no rows are held out, so nothing measures what is learned. Keep some rows apart, and name them in "
    "spec.data.eval."
)
_IMPORT_SECONDS = 20.0
"""How long a dry run waits for a reward's module. Large libraries take several seconds."""
_FIRST_LOOK_SECONDS, _FEWEST_STEPS = 600.0, 5


def dry_run(path: Path, out_dir: Path | None, overrides: list[str]) -> int:
    """Check a manifest's job, print what a run would do, and return the exit code. Nothing is written."""
    try:
        job = load_job(path, overrides)
        require_places()
        out_dir = out_dir or Path("out") / job.name
        runtime = local_runtime(job, out_dir)
        _print(*(f"warning: {warning}" for warning in runtime.warnings))
        with hasty_stores():
            asyncio.run(_look(job, path.parent, out_dir))
    except (LorarlError, ManifestError) as error:
        print(f"lorarl: {error}", file=sys.stderr)
        return 1
    return 0


async def _look(job: LoRARLJob, folder: Path, out_dir: Path) -> None:
    secrets = read_secrets(job.spec)
    trackers(job.spec.tracking, secrets, out_dir)  # nothing is opened, and what is missing is named
    with (
        tempfile.TemporaryDirectory(prefix="lorarl-dry-run-") as scratch,
        fetched_sources(job.spec, secrets) as (spec, sources),
        open_scorers(
            hasty_environment(hasty(spec)),
            folder,
            output=Output(Path(scratch) / "rewards.log"),
            eval_processes=1,
            sources=sources,
        ) as opened,
    ):
        job = job.model_copy(update={"spec": spec})
        try:
            scorers = replace(opened, patience=_patience(spec))
            with show_downloads(sys.stderr) as on_bytes:
                clock = StartClock("driver", "process")
                prepared = await prepare(job, secrets, out_dir / UNPUBLISHED, scorers, clock, on_bytes=on_bytes)
            model, data = prepared.model, prepared.rows
            _print(*model_lines(job, model), "", *data_lines(job, data, model.vocabulary))
            if scorers.reward or scorers.evals or scorers.teacher:
                _print("")
            template = model.vocabulary.tokenizer.chat_template
            adapters = prepared.stored.doubts(spec, template) if prepared.stored else []
            _print(*(f"warning: {warning}" for warning in [*unusual_settings(spec), *adapters]))
            if prepared.stored and prepared.stored.no_start:
                _print(*(f"warning: {warning}" for warning in prepared.stored.warnings(1)))
            doubtful = await _try_rewards(scorers, data, model.vocabulary)
            if scorers.reward:
                _print(*long_answers(job, data.train[:SCORED_ROWS], model.vocabulary))
            if scorers.environment:
                trial = await try_episode(spec, scorers.environment, data.train[0], model.vocabulary)
                _print(*episode_lines(spec, trial, model.vocabulary))
            if scorers.teacher:
                scorers.teacher.knows(model.vocabulary.token_text)
                _print(*await try_teacher(scorers.teacher, data.train[:SCORED_ROWS]))
        finally:
            _print(*printed_lines(Path(scratch) / "rewards.log"))
        newest = newest_checkpoint(job, secrets, out_dir / UNPUBLISHED)
        if newest:
            learned = prepared.stored.learned_from(spec) if prepared.stored else {}
            made_of = provenance(job, data.digests, folder, learned, model.vocabulary.own_template)
            others = other_inputs(newest.checkpoint.adapter_metadata, made_of)
            _print(*(f"warning: {warning}" for warning in others))
        _print("", *plan_lines(job, model, data, out_dir, steps_left(job, newest)))
        _print(*store_lines(job, model.sizes, newest, out_dir))
        found = "The warnings above do not stop a run" if doubtful else "Everything that needs no worker is in order"
        print(f"\n{found}. Start it with `lorarl run`: {out_dir} gets its files.")


def _patience(spec: LoRARLJobSpec) -> float | None:
    """Return the seconds that imports may take; None for as long as a run waits."""
    if spec.environment is None or spec.environment.function:
        return _IMPORT_SECONDS
    return None if spec.environment.verifiers else 3 * _IMPORT_SECONDS  # a library, or one that loads its tasks too


async def _try_rewards(scorers: Scorers, data: inputs.EncodedData, vocabulary: inputs.Vocabulary) -> bool:
    """Try all rewards at once, so that two that hang take no longer than one. Print what came of it.

    Returns:
        Whether a reward looks wrong.
    """
    tried = [("", scorers.reward, data.train)] if scorers.reward else []
    tried += [(name, scorer, data.evals[name]) for name, scorer in scorers.evals.items()]
    tries = [
        asyncio.ensure_future(try_reward(scorer, rows[:SCORED_ROWS], vocabulary.count)) for _, scorer, rows in tried
    ]
    if tries:
        await asyncio.wait(tries)
    doubtful = False
    for (name, _, _), done in zip(tried, tries, strict=True):
        rows_tried = await done
        _print(*trial_lines(rows_tried, name))
        doubtful = doubtful or looks_wrong(rows_tried)
    return doubtful


def _print(*lines: str) -> None:
    if lines:
        print("\n".join(lines), flush=True)


def model_lines(job: LoRARLJob, model: JudgedModel) -> list[str]:
    """Return what is trained."""
    spec, adapted = job.spec, model.sizes.adapted(job.spec.adapter)
    trainable = AdapterSize.of(spec.adapter, model.sizes).trainable(ranks=1)
    expert_rank = model.sizes.expert_rank(spec.adapter) if any(is_expert(one.name) for one in adapted) else None
    expert = of_experts(expert_rank, spec.adapter.shares_outer)
    start = f", starts from {spec.adapter.init_from}" if spec.adapter.init_from else ""
    return [
        f"job {job.name}: {spec.algorithm.type} on {spec.model.uri}",
        f"model    {model.verdict}; {model.sizes.parameters(1):,} parameters",
        f"adapter  {adapter_kind(spec.adapter)}, rank {spec.adapter.rank}{expert}, alpha {spec.adapter.alpha}, "
        f"{trainable:,} parameters in {len(adapted)} layer{'' if len(adapted) == 1 else 's'}{start}",
    ]


def data_lines(job: LoRARLJob, data: inputs.EncodedData, vocabulary: inputs.Vocabulary) -> list[str]:
    """Return what the data is, and the first row as the model sees it."""
    lengths = sorted(len(row.prompt_ids) for row in data.train)
    first, held_out = data.train[0], sum(map(len, data.evals.values()))
    summary = [
        f"data     {len(data.train):,} rows, {held_out:,} held out; prompts of {lengths[0]} to {lengths[-1]} "
        f"tokens, median {lengths[len(lengths) // 2]}",
        *(f"warning: {warning}" for warning in data.warnings),
        *([] if data.evals else [NOTHING_HELD_OUT]),
    ]
    if job.spec.opens_episodes:
        return summary
    parts = [row for row in data.train if row.row is first.row]
    return [
        *summary,
        *row_lines(parts, vocabulary.tokenizer.decode, _no_template(job, vocabulary)),
        *([f"rather than: {_brief(vocabulary.tokenizer.decode(list(first.rejected_ids)))}"] * bool(first.rejected_ids)),
    ]


def _no_template(job: LoRARLJob, vocabulary: inputs.Vocabulary) -> str:
    unused = vocabulary.tokenizer.chat_template and not job.spec.data.chat_template
    return ", without the chat template that this model has (spec.data.chatTemplate: false)" if unused else ""


def long_answers(job: LoRARLJob, rows: Sequence[EncodedRow], vocabulary: inputs.Vocabulary) -> list[str]:
    """Return a warning if the answers of rows are longer than a completion may be."""
    limit = job.spec.rollout.max_response_tokens
    encode = partial(vocabulary.tokenizer.encode, add_special_tokens=False)
    lengths = {row.row.number: len(encode(row.row.answer)) for row in rows if row.row.answer}
    cut = {number: length for number, length in lengths.items() if length > limit}
    if not cut:
        return []
    first, length = next(iter(cut.items()))
    return [
        f"warning: the answers of {len(cut)} of these {len(rows)} rows have more tokens than a completion may have "
        f"(spec.rollout.maxResponseTokens: {limit}). That of row {first} has {length}."
    ]


def plan_lines(job: LoRARLJob, model: JudgedModel, data: inputs.EncodedData, out_dir: Path, steps: int) -> list[str]:
    """Return what the run takes of memory, and of time for the steps that are left."""
    plan = [plan_title(job.spec), *_quoted(plan_table(model.verdict.plan))] if model.verdict.plan else []
    return [
        *_range_lines(job),
        *(plan or ["memory   planned when the workers start: no GPU is known here"]),
        *(_time_lines(job, model, data, out_dir, steps) if steps else []),
    ]


def _range_lines(job: LoRARLJob) -> list[str]:
    cluster = job.spec.cluster
    if cluster.fewest_nodes == cluster.nodes:
        return []
    return [
        f"nodes    {cluster.fewest_nodes} to {cluster.nodes}; planned for {cluster.nodes}, and again at each change"
    ]


def _time_lines(job: LoRARLJob, model: JudgedModel, data: inputs.EncodedData, out_dir: Path, steps: int) -> list[str]:
    measured = [step_seconds(row) for row in read_rows(out_dir / METRICS) if row.get("seconds")]
    if measured:
        seconds = sorted(measured)[len(measured) // 2]
        return [f"time     {_for_all(seconds, steps)}, as in the last run in {out_dir}"]
    if job.spec.on_gpu:
        if (plan := model.verdict.plan) is None or plan.seconds is None:
            return ["time     estimated when the workers start: no GPU is known here"]
        return [f"time     roughly {_for_all(plan.seconds.total, steps)}"]
    prompt = sum(len(row.prompt_ids) for row in data.train) / len(data.train)
    longest = job.spec.rollout.max_response_tokens
    usual = median_answer(data, model.vocabulary)
    short = min(usual or max(1, round(SHORT * longest)), longest)
    time = step_time(job.spec, model.sizes, prompt, arithmetic_speed(), short)
    what = "answers" if job.spec.algorithm.about.from_data else "completions"
    like = ", the median of the answers" if usual == short else ""
    return [
        f"time     roughly {_for_all(time.least, steps)}, if {what} have {short} token{'s' * (short > 1)}{like},",
        f"         to {_for_all(time.most, steps)}, if all have {longest}; and half a minute to start",
        *shorter(job, time),
    ]


def median_answer(data: inputs.EncodedData, vocabulary: inputs.Vocabulary) -> int | None:
    """Return the tokens of a usual answer, by the first rows; None where rows have no answer."""
    lengths = [
        len(row.answer_ids) or vocabulary.count(row.row.answer or "")
        for row in data.train[:_ANSWERS_COUNTED]
        if row.answer_ids or row.row.answer
    ]
    return sorted(lengths)[len(lengths) // 2] if lengths else None


def shorter(job: LoRARLJob, time: StepTime) -> list[str]:
    """Return what makes a long run on a CPU short enough for a first look."""
    steps, fitting = job.spec.trainer.steps, int(_FIRST_LOOK_SECONDS / time.most)
    if fitting >= steps:
        return []
    if fitting >= _FEWEST_STEPS:
        return [f"         for a first look within ten minutes: --set spec.trainer.steps={fitting}"]
    fields = ["spec.rollout.promptsPerStep", "spec.rollout.maxResponseTokens", "spec.algorithm.groupSize"]
    named = ", ".join(fields[: 2 if job.spec.algorithm.about.from_data else 3])
    return [f"         for a first look within ten minutes, lower {named}: half of one is about half the time"]


def _for_all(seconds: float, steps: int) -> str:
    one = f"{seconds:.2g}" if seconds < 100 else f"{seconds:.0f}"
    return f"{one} s a step, {duration(seconds * steps)} for {steps} steps"


def _quoted(text: str) -> list[str]:
    return [f"  | {line}" for line in text.splitlines()]


def _brief(text: str, longest: int = _LONGEST) -> str:
    shown = repr(text)
    return shown if len(shown) <= longest else f"{shown[: longest - 4]}...'"
