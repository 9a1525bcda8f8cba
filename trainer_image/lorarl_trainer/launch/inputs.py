"""What the driver reads before the first step: the tokenizer and the rows."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from lorarl_api.v1alpha1 import DataSource, LoRARLJobSpec, MixtureSource, RewardSpec
from lorarl_trainer.data.bridge import Bridge
from lorarl_trainer.data.encoder import PromptEncoder
from lorarl_trainer.data.encoding import (
    EncodedRow,
    EncodedRows,
    encode_examples,
    encode_lessons,
    encode_pairs,
    encode_prompts,
)
from lorarl_trainer.data.neighbours import unseen_columns
from lorarl_trainer.data.odd import dated_prompts, few_rows, odd_answers, odd_prompts, same_prompts, shared_prompts
from lorarl_trainer.data.order import Part
from lorarl_trainer.data.rows import Row, digest_of, load_rows
from lorarl_trainer.data.tokenizer import load_tokenizer, read_template, stop_token_ids, vocabulary_size
from lorarl_trainer.data.tool_calls import CallParser, Tools, example_of
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.builtin import unanswerable
from lorarl_trainer.rewards.scorer import check_rows, needs_answers, shows_answers
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.base_model import fetch_model_folder
from lorarl_trainer.storage.downloads import fetch_data, read_generation_config, read_model_config
from lorarl_trainer.storage.meter import OnBytes
from lorarl_trainer.storage.secrets import Secrets, secret_of


@dataclass(frozen=True)
class Vocabulary:
    """The part of the base model that the driver needs. Only the workers' machines need the weights.

    Attributes:
        stop_token_ids: any of them ends a completion.
        size: tokens that the model has an embedding for; None if that is not known. Many models have more than their
            tokenizer, whose additional tokens are decoded as nothing.
        own_template: the job's chat template, which the tokenizer has too; None if it has the model's.
    """

    tokenizer: Any
    stop_token_ids: tuple[int, ...]
    size: int | None = None
    own_template: str | None = None

    def decode(self, completions: Sequence[Sequence[int]]) -> list[str]:
        """Return the completions' texts without special tokens."""
        texts: list[str] = self.tokenizer.batch_decode(completions, skip_special_tokens=True)
        return texts

    def token_text(self, token: int) -> str:
        """Return the text of one token, special ones too."""
        text: str = self.tokenizer.decode([token])
        return text

    def count(self, completion: str) -> int:
        """Return how many tokens a completion has, with the one that ends it."""
        return len(self.tokenizer.encode(completion, add_special_tokens=False)) + 1

    def decode_prompts(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        """Return the prompts' texts with special tokens, as the model sees them."""
        texts: list[str] = self.tokenizer.batch_decode(prompts, skip_special_tokens=False)
        return texts


@dataclass(frozen=True)
class EncodedData:
    """The encoded rows.

    Attributes:
        train: the training rows, source by source.
        parts: size and weight of each of their sources.
        evals: the held-out rows by the names of `data.evaluations`.
        digests: rows and digest of each source as it was read, by its name.
    """

    train: list[EncodedRow]
    parts: list[Part]
    evals: dict[str, list[EncodedRow]]
    warnings: list[str]
    digests: dict[str, dict[str, Any]]


class Rows(NamedTuple):
    """The rows as they are in the data: of training by the paths of `data.sources`, held out by their names."""

    train: dict[str, list[Row]]
    evals: dict[str, list[Row]]


def load_vocabulary(spec: LoRARLJobSpec, secrets: Secrets) -> Vocabulary:
    """Fetch the base model without its weights to this machine, and load its tokenizer, with the job's chat template.

    Raises:
        LorarlError: there is no usable model, or no template in `spec.data.chatTemplateFile`.
    """
    folder = fetch_model_folder(spec, secrets, weights=False)
    config, generation_config = read_model_config(folder), read_generation_config(folder)
    tokenizer = load_tokenizer(folder)
    if (own := read_template_file(spec, secrets)) is not None:
        tokenizer.chat_template = own
    stops = stop_token_ids(tokenizer, generation_config, config)
    return Vocabulary(tokenizer, tuple(stops), vocabulary_size(config), own)


def read_template_file(spec: LoRARLJobSpec, secrets: Secrets) -> str | None:
    """Return the chat template of `spec.data.chatTemplateFile`; None if the model's is used.

    Raises:
        LorarlError: the file cannot be read, or is no template.
    """
    uri, field = spec.data.chat_template_file, "spec.data.chatTemplateFile"
    if uri is None:
        return None
    secret = secret_of(secrets, spec.data.credentials_secret)
    file = fetch_data(uri, field=field, secret=secret, open_folder=partial(open_store, field=field))
    return read_template(file, uri, field)


def read_rows(spec: LoRARLJobSpec, secrets: Secrets, on_bytes: OnBytes | None = None) -> Rows:
    """Read the training and the held-out rows; see `read_source` for the arguments and errors."""
    read, fields = partial(read_source, spec, secrets=secrets, on_bytes=on_bytes), eval_fields(spec)
    train = {path: read(source, field=path) for path, source in spec.data.sources.items()}
    return Rows(train, {name: read(source, field=fields[name]) for name, source in spec.data.evaluations})


def read_source(
    spec: LoRARLJobSpec, source: DataSource, *, field: str, secrets: Secrets, on_bytes: OnBytes | None = None
) -> list[Row]:
    """Read the rows of one source.

    Raises:
        LorarlError: they cannot be read, or a row lacks what the job needs.
    """
    secret = secret_of(secrets, spec.data.credentials_secret)
    open_folder = partial(open_store, field=f"{field}.uri")
    fetch = partial(fetch_data, field=f"{field}.uri", secret=secret, open_folder=open_folder, on_bytes=on_bytes)
    rewards = _rewards_of(spec, source, field)
    rows = load_rows(
        source,
        field=field,
        needs_answer=_needs_answers(spec, rewards),
        shows_answer=any(map(shows_answers, rewards.values())),
        fetch=fetch,
        hub_token=secret.get("HF_TOKEN") if source.origin.startswith("hf://") else None,
        pairs=_learned(spec, source) == "pairs",
    )
    check_rows(rewards, rows)
    return rows


def encode_rows(spec: LoRARLJobSpec, rows: Rows, vocabulary: Vocabulary, tools: Tools = ()) -> EncodedData:
    """Encode all rows; see `encode_source` and `Bridge.require` for the errors.

    `tools`: those of the environment, which the chat template shows to the model.
    """
    encoder, fields = prompt_encoder(spec, vocabulary), eval_fields(spec)
    if tools:
        rows = _with_tools(spec, rows, tools)
    warnings: list[str] = []

    def encoded(source: DataSource, rows: list[Row], field: str) -> list[EncodedRow]:
        fitting, left_out = encode_source(spec, source, rows, field, encoder)
        warnings.extend(left_out)
        return fitting

    by_source = {path: encoded(source, rows.train[path], path) for path, source in spec.data.sources.items()}
    if spec.environment is not None:
        _require_turns(spec, Bridge(encoder), next(iter(by_source.values()))[0].row, vocabulary)
    weights = [getattr(source, "weight", 1.0) for source in spec.data.sources.values()]
    parts = [Part(len(fitting), weight) for fitting, weight in zip(by_source.values(), weights, strict=True)]
    train = [row for fitting in by_source.values() for row in fitting]
    evals = {name: encoded(source, rows.evals[name], fields[name]) for name, source in spec.data.evaluations}
    read_by_path = rows.train | {fields[name]: held_out for name, held_out in rows.evals.items()}
    warnings.extend(dated_prompts(read_by_path, encoder))
    warnings.extend(few_rows(train, spec.rollout.prompts_per_step))
    for name, source in spec.data.evaluations:
        if source.episodes or not spec.opens_episodes:  # otherwise an episode is more than its prompt
            warnings.extend(shared_prompts(train, evals[name], fields[name]))
    sources = spec.data.sources.items()
    read = {
        f"mixture/{source.name}" if isinstance(source, MixtureSource) else "train": rows.train[path]
        for path, source in sources
    }
    read |= {name or "eval": held_out for name, held_out in rows.evals.items()}
    digests = {name: {"rows": len(source), "sha256": digest_of(source)} for name, source in read.items()}
    return EncodedData(train, parts, evals, warnings, digests)


def _with_tools(spec: LoRARLJobSpec, rows: Rows, tools: Tools) -> Rows:
    """Return the rows with the environment's tools.

    Raises:
        InputError: a row has its own tools, which nothing would answer.
    """
    fields = eval_fields(spec)
    sources = spec.data.sources | {fields[name]: source for name, source in spec.data.evaluations}
    if (field := next((path for path, source in sources.items() if source.tools_field), None)) is not None:
        hint = "Remove toolsField. The tools of an episode are in spec.environment.tools."
        raise InputError(f"{field}.toolsField", "a column of tools beside spec.environment.tools", "none", hint)
    shown = [dict(tool) for tool in tools]
    return Rows(*({name: [replace(row, tools=shown) for row in part] for name, part in all.items()} for all in rows))


def _require_turns(spec: LoRARLJobSpec, bridge: Bridge, row: Row, vocabulary: Vocabulary) -> None:
    """Check that the template takes further turns, and that its tool calls are understood.

    Raises:
        InputError: it does not, or they are not.
    """
    bridge.require(row)
    if not row.tools or spec.environment is None:
        return
    parser = CallParser(vocabulary.tokenizer, row.tools, spec.environment.tool_format)
    example = example_of(row.tools[0])
    try:
        written = bridge.call(row, example.name, example.arguments or {})
    except InputError:  # templates that show no calls of the past are no worse for new ones
        return
    parser.require_read(written, example)


def prompt_encoder(spec: LoRARLJobSpec, vocabulary: Vocabulary) -> PromptEncoder:
    """Return what turns a job's prompts into tokens. Raises InputError if the chat template cannot be used."""
    return PromptEncoder(
        vocabulary.tokenizer,
        chat_template=spec.data.chat_template,
        template_arguments=spec.data.chat_template_arguments,
        stop_ids=vocabulary.stop_token_ids,
        vocabulary_size=vocabulary.size,
    )


def encode_source(
    spec: LoRARLJobSpec, source: DataSource, rows: list[Row], field: str, encoder: PromptEncoder
) -> tuple[list[EncodedRow], list[str]]:
    """Encode the rows of one source; return those that are short enough, and warnings about the others.

    Raises:
        InputError: one does not fit the model's chat template, or none is short enough.
    """
    max_prompt, max_response = spec.rollout.max_prompt_tokens, spec.rollout.max_response_tokens
    if source.tools_field:
        encoder.require_tools(f"{field}.toolsField")
    if spec.opens_episodes:  # a class or an agent reads the rows, and only the check at the start has their prompts
        read = encode_prompts(rows, encoder, max_prompt_tokens=sys.maxsize, field=field).rows
        return [replace(row, prompt_ids=row.prompt_ids[:max_prompt]) for row in read], []
    if (learned := _learned(spec, source)) == "prompts":
        fitting = encode_prompts(rows, encoder, max_prompt_tokens=max_prompt, field=field)
    else:
        encode = {"pairs": encode_pairs, "answers": encode_examples, "lessons": encode_lessons}[learned]
        fitting = encode(rows, encoder, max_prompt_tokens=max_prompt, max_response_tokens=max_response, field=field)
    odd = [] if learned == "lessons" else [*odd_prompts(rows, field), *same_prompts(fitting.rows, field)]
    if learned in ("prompts", "answers"):
        rewards = _rewards_of(spec, source, field)
        odd += odd_answers(rows, field, source.answer_field, needed=_needs_answers(spec, rewards))
        odd += unanswerable(rewards, rows)
    odd += unseen_columns(rows, source, field, learned=learned != "prompts")
    return fitting.rows, [*_left_out(fitting, field, spec), *odd]


def eval_fields(spec: LoRARLJobSpec) -> dict[str, str]:
    """Return where each of `data.evaluations` is in the manifest, by its name."""
    others = {source.name: f"spec.data.evals[{number}]" for number, source in enumerate(spec.data.evals)}
    return {"": "spec.data.eval", **others}


def _rewards_of(spec: LoRARLJobSpec, source: DataSource, field: str) -> Mapping[str, RewardSpec]:
    """Return what scores completions of the rows of a source, by the paths in the manifest."""
    own = getattr(source, "reward", None)
    return {f"{field}.reward": own} if own else spec.rewards_by_path


def _needs_answers(spec: LoRARLJobSpec, rewards: Mapping[str, RewardSpec]) -> bool:
    return spec.algorithm.about.from_data if not rewards else any(map(needs_answers, rewards.values()))


def _learned(spec: LoRARLJobSpec, source: DataSource) -> Literal["prompts", "answers", "lessons", "pairs"]:
    """Return what is used of the rows of a source: prompts for completions, also in an evaluation with a reward."""
    if not spec.algorithm.about.from_data or getattr(source, "reward", None):
        return "prompts"
    if spec.algorithm.about.learns_from == "pairs":
        return "pairs"
    return "lessons" if source.has_lessons else "answers"


def _left_out(rows: EncodedRows, field: str, spec: LoRARLJobSpec) -> list[str]:
    total = len(rows.rows) + rows.long_prompts + rows.long_answers + rows.same_answers + rows.long_conversations
    limits = (
        (rows.long_prompts, "prompts", "maxPromptTokens", spec.rollout.max_prompt_tokens),
        (rows.long_answers, "answers", "maxResponseTokens", spec.rollout.max_response_tokens),
    )
    found = [
        f"{field}: left out {n} of {total} rows, whose {what} have more than spec.rollout.{name} ({limit}) tokens"
        for n, what, name, limit in limits
        if n
    ]
    if rows.long_conversations:
        both = spec.rollout.max_prompt_tokens + spec.rollout.max_response_tokens
        found.append(
            f"{field}: left out {rows.long_conversations} of {total} rows, which have more tokens than "
            f"spec.rollout.maxPromptTokens and maxResponseTokens together ({both})"
        )
    if rows.split:
        found.append(
            f"{field}: the chat template writes turns of {rows.split:,} conversations otherwise once others follow, as "
            "where it drops earlier thoughts. Each such turn is its own row, after the history as it is written "
            f"there: {total:,} rows in all"
        )
    if rows.same_answers:
        found.append(
            f"{field}: left out {rows.same_answers} of {total} rows, whose chosen and rejected answers have the same "
            "tokens, so that they teach nothing"
        )
    return found
