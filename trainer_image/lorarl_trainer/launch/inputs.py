"""What the driver reads before the first step: the model's configuration, the tokenizer and the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lorarl_api.v1alpha1 import DataSource, LoRARLJobSpec
from lorarl_trainer.data.encoding import EncodedRow, EncodedRows, PromptEncoder, encode_examples, encode_prompts
from lorarl_trainer.data.rows import digest_of
from lorarl_trainer.data.rows import load_rows as read_rows
from lorarl_trainer.data.tokenizer import load_tokenizer, stop_token_ids, vocabulary_size
from lorarl_trainer.planning.verdict import judge
from lorarl_trainer.rewards.scorer import needs_answers
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.base_model import fetch_base_config, fetch_model_folder
from lorarl_trainer.storage.downloads import fetch_data, read_generation_config, read_model_config
from lorarl_trainer.storage.secrets import Secrets, secret_of


@dataclass(frozen=True)
class Vocabulary:
    """The part of the base model that the driver needs. Only the workers' machines need the weights.

    Attributes:
        tokenizer: a tokenizer of Transformers.
        stop_token_ids: any of them ends a completion.
        size: tokens that the model has an embedding for; None if that is not known. Many models have more than their
            tokenizer, whose additional tokens are decoded as nothing.
    """

    tokenizer: Any
    stop_token_ids: tuple[int, ...]
    size: int | None = None

    def decode(self, completions: Sequence[Sequence[int]]) -> list[str]:
        """Return the completions' texts without special tokens."""
        texts: list[str] = self.tokenizer.batch_decode(completions, skip_special_tokens=True)
        return texts

    def decode_prompts(self, prompts: Sequence[Sequence[int]]) -> list[str]:
        """Return the prompts' texts with special tokens, as the model sees them."""
        texts: list[str] = self.tokenizer.batch_decode(prompts, skip_special_tokens=False)
        return texts


@dataclass(frozen=True)
class EncodedData:
    """The encoded rows.

    Attributes:
        evals: the held-out rows by the names of `data.evaluations`.
        warnings: for the user.
        digests: rows and digest of each source as it was read, by its name.
    """

    train: list[EncodedRow]
    evals: dict[str, list[EncodedRow]]
    warnings: list[str]
    digests: dict[str, dict[str, Any]]


def judge_model(spec: LoRARLJobSpec, secrets: Secrets) -> tuple[str, ...]:
    """Judge the base model by its config.json, which is all that is fetched.

    Returns:
        Why it trains slower than it could.

    Raises:
        LorarlError: there is no such model, or it cannot be trained as the job asks.
    """
    return judge(spec, fetch_base_config(spec, secrets)).slower


def load_vocabulary(spec: LoRARLJobSpec, secrets: Secrets) -> Vocabulary:
    """Fetch the base model without its weights to this machine, and load its tokenizer.

    Raises:
        LorarlError: there is no usable model.
    """
    folder = fetch_model_folder(spec, secrets, weights=False)
    tokenizer = load_tokenizer(folder)
    config = read_model_config(folder)
    stops = stop_token_ids(tokenizer, read_generation_config(folder), config)
    return Vocabulary(tokenizer, tuple(stops), vocabulary_size(config))


def load_rows(spec: LoRARLJobSpec, vocabulary: Vocabulary, secrets: Secrets) -> EncodedData:
    """Read and encode the training and the held-out rows.

    Raises:
        LorarlError: they cannot be read, or none is short enough.
    """
    secret = secret_of(secrets, spec.data.credentials_secret)
    encoder = PromptEncoder(
        vocabulary.tokenizer,
        chat_template=spec.data.chat_template,
        template_arguments=spec.data.chat_template_arguments,
        stop_ids=vocabulary.stop_token_ids,
        vocabulary_size=vocabulary.size,
    )
    warnings: list[str] = []
    digests: dict[str, dict[str, Any]] = {}

    def encoded(source: DataSource, field: str) -> list[EncodedRow]:
        fetch = partial(
            fetch_data, field=f"{field}.uri", secret=secret, open_folder=partial(open_store, field=f"{field}.uri")
        )
        reward = getattr(source, "reward", None) or spec.reward
        answers = reward is None or needs_answers(reward)
        rows = read_rows(source, field=field, needs_answer=answers, fetch=fetch, hub_token=secret.get("HF_TOKEN"))
        digests[field.removeprefix("spec.data.")] = {"rows": len(rows), "sha256": digest_of(rows)}
        max_prompt = spec.rollout.max_prompt_tokens
        if spec.algorithm.type == "sft":
            max_response = spec.rollout.max_response_tokens
            fitting = encode_examples(
                rows, encoder, max_prompt_tokens=max_prompt, max_response_tokens=max_response, field=field
            )
        else:
            fitting = encode_prompts(rows, encoder, max_prompt_tokens=max_prompt, field=field)
        warnings.extend(_left_out(fitting, field, spec))
        return fitting.rows

    train = encoded(spec.data.train, "spec.data.train")
    evals = {
        name: encoded(source, f"spec.data.evals[{number - bool(spec.data.eval)}]" if name else "spec.data.eval")
        for number, (name, source) in enumerate(spec.data.evaluations)
    }
    return EncodedData(train, evals, warnings, digests)


def _left_out(rows: EncodedRows, field: str, spec: LoRARLJobSpec) -> list[str]:
    total = len(rows.rows) + rows.long_prompts + rows.long_answers
    limits = (
        (rows.long_prompts, "prompts", "maxPromptTokens", spec.rollout.max_prompt_tokens),
        (rows.long_answers, "answers", "maxResponseTokens", spec.rollout.max_response_tokens),
    )
    return [
        f"{field}: left out {n} of {total} rows, whose {what} have more than spec.rollout.{name} ({limit}) tokens"
        for n, what, name, limit in limits
        if n
    ]
