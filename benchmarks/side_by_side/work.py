"""The work that every system does in the benchmark, and its lower bounds. Nothing here imports torch."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Sizes of a base model, as `config.json` names them. Without `head_dim`, heads share the hidden size.

    If it is `ragged`, the end token's logit is always zero, while those of the V - 1 other tokens are normal with the
    variance 0.02^2 x hidden size: lengths are geometric, with a mean of V x exp(variance / 2).

    In a mixture of experts, the linear layers are those that a token goes through. `more` has what only one family
    names. Of a model that `sees`, these are the sizes of its language model; what sees in it is tiny.
    """

    name: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool
    model_type: str = "qwen2"
    head_dim: int | None = None
    partial_rotary_factor: float | None = None
    num_experts: int | None = None
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int | None = None
    norm_topk_prob: bool | None = None
    ragged: bool = False
    sees: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments of transformers' AutoConfig.for_model, of a language model."""
        own = ("name", "ragged", "sees", "more")
        sizes = {key: value for key, value in vars(self).items() if key not in own and value is not None}
        return {**sizes, **self.more}

    @property
    def head(self) -> int:
        """The width of an attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def linears(self) -> list[tuple[int, int]]:
        """(in, out) of every linear layer that a token goes through in the decoder."""
        queries, keys = self.head * self.num_attention_heads, self.head * self.num_key_value_heads
        attention = [
            (self.hidden_size, queries),
            (self.hidden_size, keys),
            (self.hidden_size, keys),
            (queries, self.hidden_size),
        ]
        inner = self.moe_intermediate_size or self.intermediate_size
        mlp = [(self.hidden_size, inner)] * 2 + [(inner, self.hidden_size)]
        whole = [*attention, *mlp * (self.num_experts_per_tok or 1)] * (self.num_hidden_layers // self.interval)
        return whole + [*self.delta_net, *mlp] * (self.num_hidden_layers - self.num_hidden_layers // self.interval)

    @property
    def interval(self) -> int:
        """One layer of so many has attention; the others have a delta net."""
        return int(self.more.get("full_attention_interval", 1))

    @property
    def delta_net(self) -> list[tuple[int, int]]:
        """(in, out) of the linear layers of a gated delta net."""
        if self.interval == 1:
            return []
        heads = self.more["linear_num_value_heads"]
        keys = self.more["linear_num_key_heads"] * self.more["linear_key_head_dim"]
        values = heads * self.more["linear_value_head_dim"]
        inputs = [(self.hidden_size, width) for width in (2 * keys + values, values, heads, heads)]
        return [*inputs, (values, self.hidden_size)]

    @property
    def decoder_parameters(self) -> int:
        """Parameters of these layers."""
        return sum(wide * high for wide, high in self.linears)

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer that has attention, with all its experts."""
        inactive = (self.num_experts or 1) - (self.num_experts_per_tok or 1)
        inner = self.moe_intermediate_size or self.intermediate_size
        of_a_token = sum(wide * high for wide, high in self.linears[: 4 + 3 * (self.num_experts_per_tok or 1)])
        return of_a_token + 3 * inactive * self.hidden_size * inner

    @property
    def head_parameters(self) -> int:
        """Parameters of the output matrix, which is the embedding if they are tied."""
        return self.hidden_size * self.vocab_size

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values per token, in bf16."""
        return 2 * 2 * self.num_hidden_layers * self.head * self.num_key_value_heads

    def adapter_parameters(self, rank: int) -> int:
        """Return the parameters of a LoRA adapter on every linear layer of the decoder."""
        return sum(rank * (wide + high) for wide, high in self.linears)


QWEN3_A3B = Shape(
    "a3b",
    hidden_size=2048,
    intermediate_size=6144,
    num_hidden_layers=48,
    num_attention_heads=32,
    num_key_value_heads=4,
    vocab_size=151_936,
    tie_word_embeddings=False,
    model_type="qwen3_moe",
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
    norm_topk_prob=True,
)
DELTA_NETS = {"full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 32}
DELTA_NETS |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}
GEMMA_4: dict[str, Any] = {
    "num_kv_shared_layers": 18,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 7,
    "global_head_dim": 512,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
}
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("0.5b", 896, 4864, 24, 14, 2, 151_936, tie_word_embeddings=True),
        Shape("7b", 3584, 18_944, 28, 28, 4, 152_064, tie_word_embeddings=False),
        Shape("14b", 5120, 13_824, 48, 40, 8, 152_064, tie_word_embeddings=False),
        Shape("32b", 5120, 27_648, 64, 40, 8, 152_064, tie_word_embeddings=False),
        Shape("70b", 8192, 28_672, 80, 64, 8, 128_256, tie_word_embeddings=False, model_type="llama"),
        # Answers of 656 and of 2,098 tokens on average.
        Shape("7b-ragged", 3584, 18_944, 28, 28, 4, 320, tie_word_embeddings=False, ragged=True),
        Shape("7b-ragged-long", 3584, 18_944, 28, 28, 4, 1024, tie_word_embeddings=False, ragged=True),
        # Only the fsdp backend trains these three.
        Shape("gemma3-4b", 2560, 10_240, 34, 8, 4, 262_208, True, "gemma3_text", 256),
        Shape("phi3-mini", 3072, 8192, 32, 32, 32, 32_064, False, "phi3"),
        Shape("phi4-mini", 3072, 8192, 32, 24, 8, 200_064, True, "phi3", partial_rotary_factor=0.75),
        # Mixtures: Qwen3-30B-A3B, and a quarter of its layers, for a peer that has the base twice.
        QWEN3_A3B,
        replace(QWEN3_A3B, name="a3b-12", num_hidden_layers=12),
        # Qwen3-235B-A22B.
        replace(
            QWEN3_A3B,
            name="a22b",
            hidden_size=4096,
            intermediate_size=12_288,
            num_hidden_layers=94,
            num_attention_heads=64,
            moe_intermediate_size=1536,
        ),
        # Delta nets in three layers of four, and layers of two sizes of which some take the keys of others.
        Shape("qwen3.5-4b", 2560, 9216, 32, 16, 4, 248_320, True, "qwen3_5", 256, sees=True, more=DELTA_NETS),
        Shape("gemma4-e4b", 2560, 10_240, 42, 8, 2, 262_144, True, "gemma4_text", 256, more=GEMMA_4),
        # For a trial of the benchmark, not for figures.
        Shape("tiny", 256, 512, 2, 4, 2, 2048, tie_word_embeddings=True),
        replace(
            QWEN3_A3B,
            name="tiny-experts",
            hidden_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            vocab_size=2048,
            num_experts=8,
            num_experts_per_tok=2,
            moe_intermediate_size=256,
        ),
    )
}


VLLM_SHARE = 0.4
"""Share of a GPU's memory for the peer's vLLM."""


@dataclass(frozen=True)
class Work:
    """One step: prompts, completions per prompt (`group`), tokens of both; the adapter, and how it is trained.

    `vllm_share` is lorarl's share of a GPU's memory for vLLM: the peer's where both make the same answers, and None
    where lorarl chooses it. `supervised`: the answers are in the data, and nothing is generated.
    """

    prompts: int = 64
    group: int = 8
    prompt_tokens: int = 64
    response_tokens: int = 256
    rank: int = 32
    alpha: int = 64
    learning_rate: float = 3e-5
    temperature: float = 1.0
    vllm_share: float | None = VLLM_SHARE
    supervised: bool = False

    @property
    def completions(self) -> int:
        """Completions per step."""
        return self.prompts * self.group

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence."""
        return self.prompt_tokens + self.response_tokens

    @property
    def prompts_file(self) -> str:
        """The name of the prompts' file in a model's folder."""
        answers = f"-{self.response_tokens}" if self.supervised else ""
        return f"prompts-{self.prompt_tokens}{answers}.jsonl"

    def times(self, factor: int) -> Work:
        """Return the same work with more prompts per step."""
        return replace(self, prompts=self.prompts * factor)


WORKS = {
    "equal": (Work(), ("0.5b", "7b")),
    "ragged": (Work(prompts=32, group=16, prompt_tokens=256, response_tokens=4096, vllm_share=None), ("7b-ragged",)),
    "16k": (
        Work(prompts=16, group=16, prompt_tokens=256, response_tokens=16_384, vllm_share=None),
        ("7b-ragged-long",),
    ),
    "3k": (Work(prompts=16, prompt_tokens=256, response_tokens=3072, vllm_share=None), ("a3b",)),
    "long-prompt": (Work(prompt_tokens=20_000, vllm_share=None), ("7b",)),
    "32k": (Work(prompts=4, prompt_tokens=31_744, response_tokens=1024, vllm_share=None), ("7b",)),
    "128k": (Work(prompts=2, group=4, prompt_tokens=127_000, response_tokens=1000, vllm_share=None), ("7b",)),
    "large": (Work(vllm_share=None), ("32b",)),
}
"""What a step may be, and the shapes that it is measured with."""


def train_flops(shape: Shape, work: Work, response_tokens: float) -> float:
    """Return the floating-point operations that one LoRA update needs at least, without attention and recomputation.

    A token takes 2 per base parameter forward and 2 backward (the gradient of the input; that of the weights is not
    needed), and 6 per adapter parameter. A group's prompt counts once. The output matrix only counts for the
    `response_tokens`, because only they have a loss.
    """
    tokens = work.prompts * work.prompt_tokens + response_tokens
    decoder = 4 * shape.decoder_parameters + 6 * shape.adapter_parameters(work.rank)
    return tokens * decoder + response_tokens * 4 * shape.head_parameters


def attention_flops(shape: Shape, work: Work) -> float:
    """Return the floating-point operations of attention in one update, as flash attention computes it.

    A query and a key that it sees take two products of the head's width forward, and five backward: the scores again,
    and four gradients. A group's prompt counts once, and answers are of their greatest length.
    """
    prompt, answer = work.prompt_tokens, work.response_tokens
    pairs = work.prompts * (prompt**2 / 2 + work.group * (answer * prompt + answer**2 / 2))
    return 7 * 2 * shape.head * shape.num_attention_heads * shape.num_hidden_layers * pairs


def generation_floor(shape: Shape, work: Work, flops: float, bandwidth: float) -> float:
    """Return the least seconds for generating all completions of a step.

    All are decoded together, one token each at a time. That takes the longer of 2 operations per parameter and
    completion, and reading the parameters. It also reads all keys and values so far, a group's prompt once.

    Args:
        shape: of the model.
        work: the step.
        flops: operations per second at the peak.
        bandwidth: bytes of memory per second.
    """
    parameters = shape.decoder_parameters + shape.head_parameters + shape.adapter_parameters(work.rank)
    products = max(2 * parameters * work.completions / flops, 2 * parameters / bandwidth)
    prefill = 2 * shape.decoder_parameters * work.prompts * work.prompt_tokens / flops
    read = work.prompts * work.prompt_tokens + work.completions * work.response_tokens / 2
    return prefill + work.response_tokens * (products + read * shape.kv_bytes / bandwidth)


def write_prompts(model: Path, work: Work, rows: int = 1024) -> None:
    """Write prompts of `work.prompt_tokens` random digits, and answers if it is supervised.

    The benchmark's tokenizer makes one token of each digit, and an answer ends with a token more.
    """
    path = model / work.prompts_file
    if path.exists():
        return
    draw, answer = random.Random(0), work.response_tokens - 1 if work.supervised else 0

    def digits(count: int) -> str:
        return "".join(draw.choices("0123456789", k=count))

    made = [{"prompt": digits(work.prompt_tokens), "answer": digits(answer)} for _ in range(rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in made))


def score(prompt: object, completion: str, answer: object, row: object) -> float:
    """Return the reward of both systems. It costs nothing, and it differs within a group."""
    return float(len(completion) % 7)
