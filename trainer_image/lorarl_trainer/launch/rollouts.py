"""Where a run's samples come from, as its manifest says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.data.tool_calls import CallParser
from lorarl_trainer.from_data.dpo import Pairs
from lorarl_trainer.from_data.sft import Answers
from lorarl_trainer.launch import inputs
from lorarl_trainer.progress import Progress
from lorarl_trainer.protocols.rollouts import Rollouts
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.rewards.scorer import Scorers
from lorarl_trainer.rewards.scores import Scorer
from lorarl_trainer.rollout.agents import Agents
from lorarl_trainer.rollout.ahead import Ahead
from lorarl_trainer.rollout.endpoint.conversation import Speech
from lorarl_trainer.rollout.episodes import Episodes, Tools
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.rollout.generation import Generation
from lorarl_trainer.rollout.lockstep import Lockstep
from lorarl_trainer.rollout.partial import Partial
from lorarl_trainer.rollout.replay import Replay
from lorarl_trainer.rollout.taught import InTheWorkers, Taught


def make_rollouts(
    spec: LoRARLJobSpec,
    workers: Workers,
    rows: inputs.EncodedData,
    vocabulary: inputs.Vocabulary,
    scorers: Scorers,
    stream: RowStream,
    progress: Progress,
    replay: Path | None,
    unfinished: Sequence[int],
) -> Rollouts:
    """Return where the samples come from: generated and scored, or played in an environment, or for sft and dpo the
    data's own answers.

    `replay`: a folder with the samples of another run, which are trained on instead; None for this run's own.
    """
    paths = inputs.eval_fields(spec)
    # On a CPU, turns go together: a job has the same bytes again there, whatever takes how long. Generated ahead, which
    # version makes a turn depends on that anyway.
    reward: Scorer | Episodes | None = scorers.reward
    if scorers.environment is not None:
        together = not spec.on_gpu and not spec.rollout.max_staleness
        reward = episodes_of(spec, scorers, vocabulary, together=together)
    evaluations = {
        name: Evaluation.of(name, source, paths[name], rows.evals[name], scorer, spec.rollout)
        for name, source in spec.data.evaluations
        if (scorer := scorers.evals.get(name, reward))
    }
    algorithm = get_algorithm(spec.algorithm, spec.rollout.max_response_tokens)
    if replay is not None:
        return Replay(replay, stream.position, algorithm.group_size)
    if spec.algorithm.about.learns_from == "teacher":
        if scorers.teacher is not None:
            scorers.teacher.knows(vocabulary.token_text)
        return Taught(
            spec=spec,
            rows=stream,
            evaluations=evaluations,
            group_size=algorithm.group_size,
            workers=workers,
            scorer=scorers.teacher or InTheWorkers(),
            decode=vocabulary.decode,
            progress=progress,
            decode_prompts=vocabulary.decode_prompts,
        )
    if reward is None:
        decoders = vocabulary.decode, vocabulary.decode_prompts
        generated = Generation(spec, workers, progress, *decoders, evaluations) if evaluations else None
        held_out, per_step = rows.evals, spec.rollout.prompts_per_step
        if spec.algorithm.about.learns_from == "pairs":
            return Pairs(stream, held_out, per_step, workers, algorithm.loss, generated=generated)
        return Answers(stream, held_out, per_step, workers, generated=generated)
    make: Callable[..., Lockstep] = Lockstep
    if (chosen := spec.rollout.partial) is not None:
        make = partial(
            Partial,
            extra_prompts=chosen.extra_prompts,
            tokens_per_round=spec.rollout.tokens_per_round,
            resumed=unfinished,
        )
    source = make(
        spec=spec,
        rows=stream,
        evaluations=evaluations,
        group_size=algorithm.group_size,
        workers=workers,
        scorer=reward,
        decode=vocabulary.decode,
        progress=progress,
        decode_prompts=vocabulary.decode_prompts,
        max_refills=algorithm.max_refills,
        newer=spec.rollout.max_staleness > 0,
    )
    return Ahead(source, spec.rollout.max_staleness, spec.trainer.steps) if source.newer else source


def bridge_of(spec: LoRARLJobSpec, vocabulary: inputs.Vocabulary) -> Bridge:
    """Return what bridges the turns of a job's episodes."""
    return Bridge(inputs.prompt_encoder(spec, vocabulary))


def speech_of(spec: LoRARLJobSpec, vocabulary: inputs.Vocabulary) -> Speech:
    """Return what turns an agent's messages into tokens, and the model's turns into messages."""
    assert spec.environment is not None, "the job has one"
    parser = partial(CallParser, vocabulary.tokenizer, chosen=spec.environment.tool_format)
    return Speech(bridge_of(spec, vocabulary), vocabulary.decode, vocabulary.decode_prompts, parser)


def episodes_of(spec: LoRARLJobSpec, scorers: Scorers, vocabulary: inputs.Vocabulary, *, together: bool) -> Episodes:
    """Return what plays a job's episodes, once its environment is ready. `together`: see `Turns`."""
    environment, reward, tools = scorers.environment, scorers.reward, None
    agents: Callable[[], Agents] | None = None
    assert spec.environment is not None and environment is not None, "the job has one"
    if reward is not None:
        parser = CallParser(vocabulary.tokenizer, environment.tools, spec.environment.tool_format)
        tools = Tools(parser, reward)
    if spec.environment.calls_model:
        agents = partial(Agents, spec, speech_of(spec, vocabulary), environment.sees_us_at)
    bridge, decoders = bridge_of(spec, vocabulary), (vocabulary.decode, vocabulary.decode_prompts)
    return Episodes(spec, environment, bridge, *decoders, together=together, tools=tools, agents=agents)
