"""What a token keeps of one rank's memory from the forward pass to the backward pass, by formulas.

They follow V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv:2205.05198),
section 4, without the scores that flash attention does not keep, with SwiGLU, and with what LoRA on a frozen base
changes: a frozen linear layer keeps nothing, and its adapter keeps the layer's input. With h the hidden size, q and k
the widths of queries and keys, f that of the MLP, and n those of all norms of a layer together, a token of a layer
keeps, in the model's precision,

    fused layers (`backends/megatron/fused_layer.py`)  2h + 2q + 2k + 2f
        hidden states before attention and MLP; q, k, v and attention's output; gate and up
    Megatron's own (tensor parallel, adapter dropout)  4h + 3q + 3k + 5f
        also the norms' outputs, q and k before rotation, SwiGLU's product, and fc1's output before and after its
        adapter's share
    Transformers' (`backends/fsdp`)                    2h + 2n + 2q + 2k + 4f
        the inputs of the adapters on attention and MLP; the norms' inputs in fp32; q, k, v and attention's output;
        gate, its activation, up, and their product. Without a gate 5f: a GELU may be five products
    a mixture of experts, of which a token has e       3h + 2q + 2k + 2ef
        fused; also the norm's output, which the experts copy again; gate and up of each of a token's experts. In the
        layer at work e (h + 3f) more: the copies, or their gradients, and those of gate, up and SwiGLU's product. If
        workers share the experts, a token's row is kept by each that has some of its experts, and four more rows are on
        their way; some workers get more tokens than others, for which a quarter more is allowed
    the same whose experts stay as they are (`fsdp`)   2h + 2n + 2q + 2k + e (4f + h)
        of each of a token's experts: gate, its activation, up, their product, and the output; 6f in gpt-oss, which
        clamps gate and up.
        With a shared expert of inner size s, 4s + h more: what an MLP keeps, and its output
    norms of all heads together (fused)                q + 2k more
        q, k and v before them

An adapter of rank r keeps A x as well: r values for each layer that it is on, 7r if it is on all linear layers, and
of an expert those of the padded ranks. Each tensor-parallel rank has these whole.

`trainer.recompute: selective` computes gate and up, or the whole MLP, again; `full` a whole layer (h stays). Either
brings one layer back at a time. Sequence parallelism splits all of it over the ranks.

A prompt is computed once for all its completions, but each of them attends to the prompt's keys and values, which are
gathered for that. A key of a completion's own or of its prompt takes

    fused layers         in the layer at work 4k + 2q
    others               2k in each layer, unless `recompute` is full, and in the layer at work 4k + 2q

of which 2k are the gathered keys and values, 2k their gradients, and 2q what flash attention's backward pass makes
those of, over all heads of queries. Without grouped queries there is no such copy.

Layers that keep a state see each completion with its prompt, so that what they keep is counted for these tokens too
(`models/layer_kinds.py`).

Where ranks share the context (`samples/context.py`), each keeps its share of the tokens. In the layer at work it has
the keys and values of all tokens and their gradients, 4k a token, besides those that its own queries see. These are at
most all keys of the micro-batch, and those of one sequence twice, since a rank may have two parts of it.

Measured on an H200, 7B shape, fused, 16,384 tokens per micro-batch, without vLLM: 64.6 GB. Transformers' layers, with
vLLM: 122 GB. `tests/trainer/test_fsdp_memory.py` counts what these keep in each family.

Without flash attention (on CPU, in fp32, and for windows and capped scores), attention works on padded copies
(`kernels/attention.py`): of the queries and of its output, each up to twice as long, and two of the keys and
values, in which each completion has its prompt's too. With a group of G, a token keeps up to 4q + 4k (1 + G) more. With
L the longest sequence, a and g the heads of queries and of keys, a window's mask keeps (a / g) L more, and scores that
are capped 5 a L: capped, and as probabilities in fp32 and in the model's precision.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.execution import ExecutionPlan, Recompute
from lorarl_trainer.samples.whole_sequences import PADDED

_UNEVEN = 1.25
"""Rows of tokens that come to the worker with the most, over the mean."""


def activation_bytes(
    model: ModelSizes, execution: ExecutionPlan, recompute: Recompute | None = None
) -> tuple[int, int]:
    """Return the bytes that a token keeps in all layers until the backward pass, and in one layer while that runs.

    They are those of all ranks that share the model or its context. The module's text has the formulas. `recompute` is
    the plan's unless it is given.
    """
    recompute = recompute or execution.trainer.recompute
    values = _values(model, execution)
    kept = {"none": values.kept, "selective": values.kept - values.again, "full": model.hidden}[recompute]
    # With recomputation, the activations come back too.
    at_work = values.at_work if recompute == "none" else values.at_work + values.kept
    return kept * model.layers * execution.compute.bytes, at_work * execution.compute.bytes


def touched_bytes(model: ModelSizes, execution: ExecutionPlan) -> int:
    """Return the bytes of all that a token is in all layers, be it kept or made again."""
    return _values(model, execution).touched * model.layers * execution.compute.bytes


class _Values(NamedTuple):
    """Numbers of values that a token takes in a layer.

    Attributes:
        kept: until the backward pass.
        again: what `selective` computes again of those.
        at_work: what comes on top while the layer works: gradients, as large as what they are of.
        touched: all that is written and read.
    """

    kept: int
    again: int
    at_work: int
    touched: int


def _values(model: ModelSizes, execution: ExecutionPlan) -> _Values:
    h, q, k, f = model.hidden, model.width("q_proj"), model.width("k_proj"), model.width("up_proj")
    norms = q + 2 * k if execution.trainer.fused_layers and model.whole_norms else 0
    if execution.trainer.fused_layers and model.experts:
        beside, sharing = 2 * h + 2 * q + 2 * k + norms, execution.layout.expert_ranks
        rows, copies = math.ceil(_uneven(execution) * h * min(sharing, model.active_experts)), _copies(model, execution)
        mlp, on_their_way = rows + copies * 2 * f, 0 if sharing == 1 else 4 * rows
        at_work, touched = beside + copies * (h + 3 * f) + on_their_way, beside + copies * (2 * h + 3 * f)
        return _Values(beside + mlp, mlp, at_work, touched)
    if execution.trainer.fused_layers:
        whole, again = 2 * h + 2 * q + 2 * k + norms + 2 * f, 2 * f
    elif execution.backend == "fsdp":
        again = (4 if model.width("gate_proj", "gate_up_proj", "w1", "input_linear") else 5) * f
        if experts := model.frozen_experts:
            shared = 4 * experts.shared + (h if experts.shared else 0)
            mixture = experts.active * (experts.kept * experts.inner + h) + shared
            again = mixture + (again - mixture) * experts.dense // model.layers
        whole = 2 * h + 2 * model.normalised + 2 * q + 2 * k + again
    else:
        whole, again = 4 * h + 3 * q + 3 * k + 5 * f, h + 5 * f
    return _Values(whole, again, whole, whole)


def _uneven(execution: ExecutionPlan) -> float:
    return 1.0 if execution.layout.expert_ranks == 1 else _UNEVEN


def _copies(model: ModelSizes, execution: ExecutionPlan) -> int:
    """Return the rows that the experts of one worker have for each of its tokens."""
    return math.ceil(_uneven(execution) * model.active_experts)


def state_bytes(model: ModelSizes, execution: ExecutionPlan) -> tuple[int, int]:
    """Return what a token of a sequence keeps in all layers with a state, and in one while that is at work.

    Such a layer computes a prompt once for each of its completions.
    """
    each = [4 * state.single + execution.compute.bytes * state.plain for state in model.states]
    kept = 0 if execution.trainer.recompute == "full" else sum(each)
    # Its gradients, itself if it is computed again, and of its rule both.
    again = max((4 * state.again for state in model.states), default=0)
    return kept, (1 if kept else 2) * max(each, default=0) + 2 * again


def low_rank_bytes(model: ModelSizes, adapter: AdapterSize, execution: ExecutionPlan) -> tuple[int, int]:
    """Return the bytes of A x that a token keeps in all layers until the backward pass, and in one while that runs.

    They are one rank's. They are not among `token_bytes`, from which micro-batches on a CPU follow: those stay as they
    are.
    """
    outside, of_experts = adapter.inner, 0
    if adapter.layers_of_experts:
        ranks = adapter.gate_up_rank + adapter.expert_rank
        of_experts = _copies(model, execution) * ranks * model.layers
    kept = {"none": outside + of_experts, "selective": outside, "full": 0}[execution.trainer.recompute]
    # Its gradient, and itself if it is computed again.
    at_work = (1 if execution.trainer.recompute == "none" else 2) * -(-(outside + of_experts) // model.layers)
    width = execution.compute.bytes
    return kept * width // execution.layout.context_ranks, at_work * width // execution.layout.context_ranks


def token_bytes(model: ModelSizes, execution: ExecutionPlan) -> tuple[int, int]:
    """Return one rank's `activation_bytes`, with the copies of attention where it is not flash attention."""
    kept, at_work = activation_bytes(model, execution)
    if execution.trainer.attention_copies:
        # Each rank that shares the context has the keys and values of all tokens.
        keys = execution.trainer.attention_copies * execution.layout.context_ranks
        copies = 4 * model.width("q_proj") + 4 * model.width("k_proj") * keys
        if not model.attends_plainly(execution.longest):
            copies += execution.longest * (5 * model.heads if model.soft_cap else model.heads // model.key_heads)
        of_states = state_bytes(model, execution)
        at_work += copies * execution.compute.bytes + execution.trainer.attention_copies * of_states[1]
        kept += execution.trainer.attention_copies * of_states[0]
        kept += 0 if execution.trainer.recompute == "full" else copies * execution.compute.bytes * model.layers
    return kept // execution.layout.trainer_workers, at_work // execution.layout.trainer_workers


def key_bytes(model: ModelSizes, execution: ExecutionPlan) -> tuple[int, int]:
    """Return the bytes that a key keeps in all layers until the backward pass, and in one layer while that runs.

    They are one rank's.
    """
    width, k = execution.compute.bytes, _key_width(model, execution)
    q = model.width("q_proj") // execution.layout.trainer_ranks
    stays = not execution.trainer.fused_layers and execution.trainer.recompute != "full"
    kept, at_work = (math.ceil(PADDED * of_states) for of_states in state_bytes(model, execution))
    kept += 2 * k * model.attention_layers * width if stays else 0
    return kept, at_work + (4 * k + (2 * q if q > k else 0)) * width


def shared_key_bytes(model: ModelSizes, execution: ExecutionPlan) -> int:
    """Return the bytes of a token's keys and values, and of their gradients, where ranks share the context."""
    if execution.layout.context_ranks == 1:
        return 0
    return 4 * _key_width(model, execution) * execution.compute.bytes


def _key_width(model: ModelSizes, execution: ExecutionPlan) -> int:
    """Return the width of one rank's keys, in the widest layer: it has at least one head."""
    if model.key_widths:
        return max(model.key_widths)
    return max(1, model.key_heads // execution.layout.trainer_ranks) * model.head
