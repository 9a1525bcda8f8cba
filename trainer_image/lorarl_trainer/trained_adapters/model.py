"""A base model with its adapter, in transformers and PEFT: generates with either."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lorarl_trainer.data.tokenizer import stop_token_ids
from lorarl_trainer.errors import InputError, in_one_line
from lorarl_trainer.launch.inputs import Vocabulary
from lorarl_trainer.models.fsdp_families import auto_class
from lorarl_trainer.models.packed_weights import reading_options, take_precision
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.trained_adapters.adapter_on_base import with_adapter
from lorarl_trainer.trained_adapters.own_tokenizer import load_own_tokenizer
from lorarl_trainer.trained_adapters.source import ARGUMENT, Source

_TOKENS_AT_A_TIME = 16_384
"""Prompt and response tokens of one batch: a KV cache of a few GB at 7B."""


@dataclass(frozen=True)
class Decoding:
    """How completions are made.

    Attributes:
        samples: completions of each prompt.
        max_tokens: the longest one.
        sampling: where tokens are drawn from; None takes the best token everywhere.
        stop: texts that end a completion.
    """

    samples: int
    max_tokens: int
    sampling: Sampling | None
    stop: Sequence[str] = ()


@dataclass(frozen=True)
class Answer:
    """A completion's text, whether it was cut off at the longest length, and its tokens with the one that ends it."""

    text: str
    truncated: bool
    ids: Sequence[int]

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return len(self.ids)


@dataclass(frozen=True)
class AdaptedModel:
    """A loaded model.

    Attributes:
        stops: token ids, any of which ends a completion.
        defaults: the base model's own settings of generation, for who generates with a merged model.
        unpacked: weights of the base model are packed in its files.
        of_base: parameters as the base model's files have them, by name, where PEFT has changed them for the adapter.
    """

    model: Any
    tokenizer: Any
    stops: Sequence[int]
    defaults: Any
    unpacked: bool
    of_base: Mapping[str, Any]

    @property
    def vocabulary(self) -> Vocabulary:
        """What prompts are encoded with."""
        return Vocabulary(self.tokenizer, tuple(self.stops), self.model.config.get_text_config().vocab_size)

    @contextlib.contextmanager
    def plain(self) -> Iterator[None]:
        """Let the model be the base alone, as its files have it."""
        changed = {name: self.model.get_parameter(name) for name in self.of_base}
        with_adapter = {name: parameter.data for name, parameter in changed.items()}
        with self.model.disable_adapter():
            try:
                for name, parameter in changed.items():
                    parameter.data = self.of_base[name].to(parameter.device)
                yield
            finally:
                for name, parameter in changed.items():
                    parameter.data = with_adapter[name]

    def log_probabilities(self, ids: Sequence[int]) -> Floats:
        """Return those of all tokens but the first, [T - 1], at temperature 1."""
        import torch

        tokens_T = torch.tensor(ids, device=self.model.device)
        with torch.inference_mode():
            logits_T_V = self.model(input_ids=tokens_T[None]).logits[0, :-1].float()
        found_T = logits_T_V.log_softmax(-1).gather(-1, tokens_T[1:, None])[:, 0]
        return np.asarray(found_T.cpu().numpy(), np.float32)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        decoding: Decoding,
        done: Callable[[int, int], None] = lambda ready, tokens: None,
    ) -> list[list[Answer]]:
        """Return `decoding.samples` completions of each prompt, in the prompts' order.

        Long and short prompts are in separate batches, so that little is computed for padding. `done` is called
        for each token, with the number of prompts that are ready and the tokens that the next completions have so far.
        """
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        found: dict[int, list[Answer]] = {}
        while len(found) < len(prompts):
            rest = order[len(found) :]
            longest = len(prompts[rest[-1]]) + decoding.max_tokens
            batch = rest[: max(1, _TOKENS_AT_A_TIME // (longest * decoding.samples))]
            answers = self._batch([prompts[index] for index in batch], decoding, partial(done, len(found)))
            found |= dict(zip(batch, answers, strict=True))
        done(len(found), 0)
        return [found[index] for index in range(len(prompts))]

    def _batch(
        self, prompts: Sequence[Sequence[int]], decoding: Decoding, done: Callable[[int], None]
    ) -> list[list[Answer]]:
        import torch
        from transformers import StoppingCriteriaList

        width, pad = max(map(len, prompts)), self._pad
        tokens = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        device = self.model.device

        def stopped(ids: torch.Tensor, _: Any, **__: Any) -> torch.Tensor:
            """Look for stop texts in completions alone: Transformers' own would look into the prompts too."""
            done(ids.shape[1] - width)
            ends = [self._stop_at(row, decoding.stop) is not None for row in ids[:, width:].tolist()]
            return torch.tensor(ends, device=ids.device)

        with torch.inference_mode():
            made = self.model.generate(
                input_ids=tokens.to(device),
                attention_mask=mask.to(device),
                generation_config=self._configuration(decoding),
                stopping_criteria=StoppingCriteriaList([stopped]),
            )
        answers = [self._answer(ids, decoding.stop) for ids in made[:, width:].tolist()]
        return [answers[start : start + decoding.samples] for start in range(0, len(answers), decoding.samples)]

    def _configuration(self, decoding: Decoding) -> Any:
        """Return Transformers' settings; not the model's own defaults, whose penalties are not those of a run."""
        from transformers import GenerationConfig

        sampling, chosen = decoding.sampling, {}
        if sampling is not None:
            chosen = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
            if sampling.min_p:
                chosen["min_p"] = sampling.min_p
        return GenerationConfig(
            max_new_tokens=decoding.max_tokens,
            do_sample=sampling is not None,
            num_return_sequences=decoding.samples,
            eos_token_id=list(self.stops),
            pad_token_id=self._pad,
            **chosen,
        )

    def _answer(self, ids: Sequence[int], stop: Sequence[str]) -> Answer:
        """Return a completion as a reward sees it: without a stop token, but with a stop text."""
        end = next((place for place, token in enumerate(ids) if token in self.stops), None)
        at = self._stop_at(ids[:end], stop)
        text = self._text(ids[: end if at is None else at])
        if at is None:
            return Answer(text, truncated=end is None, ids=ids if end is None else ids[: end + 1])
        # What follows are the fillings of a batch whose other answers are longer.
        return Answer(text[: min(text.index(word) + len(word) for word in stop if word in text)], False, ids[:at])

    def _stop_at(self, ids: Sequence[int], stop: Sequence[str]) -> int | None:
        """Return how many tokens a completion has with the one that ends a stop text; None without any."""
        if not stop or not _has(self._text(ids), stop):
            return None
        return bisect_left(range(len(ids) + 1), True, key=lambda count: _has(self._text(ids[:count]), stop))

    def _text(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return text

    @property
    def _pad(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(self.stops[0] if pad is None else pad)


def _has(text: str, stop: Sequence[str]) -> bool:
    return any(word in text for word in stop)


def load_adapted(source: Source, *, seed: int = 0, device: str | None = None) -> AdaptedModel:
    """Load base model, adapter and tokenizer; on a GPU if there is one and no other device is named.

    Raises:
        InputError: one of them cannot be loaded.
    """
    with _quiet():
        import torch
        import transformers
        from transformers import GenerationConfig

        from lorarl_trainer.backends.fsdp.quantization import quantizing_options
        from lorarl_trainer.kernels.formats import format_of

        transformers.logging.set_verbosity_error()
        torch.manual_seed(seed)
        try:
            tokenizer = load_own_tokenizer(source)
            config = transformers.AutoConfig.from_pretrained(source.base, revision=source.revision)
            loader = getattr(transformers, auto_class(config.model_type))
            packed, dtype = reading_options(config), _precision(source)
            options = packed | quantizing_options(format_of(source.quantization))
            base = loader.from_pretrained(source.base, revision=source.revision, dtype=dtype, **options)
            if packed:
                take_precision(base, dtype)
        except Exception as error:  # Transformers raises nearly every type
            raise InputError(
                ARGUMENT,
                f"{source.name}, whose base model {source.base} cannot be loaded ({in_one_line(error)})",
                "a base model that transformers loads",
                "Name the base model's folder with --base.",
            ) from error
        model, of_base = with_adapter(base, source)
    model.eval().to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    defaults = base.generation_config
    base.generation_config = GenerationConfig()  # generate() takes from it what its settings leave open, like penalties
    stops = stop_token_ids(tokenizer, defaults.to_dict(), base.config.to_dict())
    return AdaptedModel(model, tokenizer, stops, defaults, bool(packed), of_base)


def _precision(source: Source) -> Any:
    """Return the precision of the job; without one bf16 on a GPU, and fp32 elsewhere."""
    import torch

    if source.job is not None:
        return torch.float32 if source.job.spec.precision == "fp32" else torch.bfloat16
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the libraries' bars and advice off the terminal."""
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bars()
    disable_progress_bar()
    yield
