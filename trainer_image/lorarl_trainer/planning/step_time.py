"""How long a step takes on GPUs, roughly: to choose between plans, and to say what to expect.

Every part of a step is a number of operations over a share of the GPU's speed, or a number of bytes over its bandwidth,
or a time that it takes in any case. The shares come from one H200 (docs/performance.md, benchmarks/results/), 0.5B and
7B shapes of Qwen2.5, rank 32 on every linear layer, bf16, 64 prompts of 64 tokens with 8 completions of 256 each:

    decode      4.3 ms a step at 0.5B and 17.2 ms at 7B, of which products take 11.8; 5.4 ms with 24 long sequences
    training    0.93 s at 0.5B and 7.04 s at 7B in micro-batches of 16,384 tokens; 0.85 s at 0.5B in those of 65,536

Lengths of completions are not known before they are there. L being the longest, (1 - t/L) to the power of
`Work.spread` of them are assumed to be longer than t: 0 means that all reach L, and 1 that all lengths are as frequent.
"""

from __future__ import annotations

from dataclasses import dataclass

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.models.model_sizes import ModelSizes
from lorarl_trainer.planning.activations import touched_bytes
from lorarl_trainer.planning.execution import ExecutionPlan, kv_bytes_per_token, sequences_held
from lorarl_trainer.planning.gpu_speeds import Speed

_DECODE_PRODUCTS, _DECODE_ATTENTION, _DECODE_LAYER_SECONDS = 0.7, 0.5, 6.5e-5
"""Of a decode step: shares of operations and bandwidth, and what a layer's other kernels take."""
_DECODE_EXPERTS, _DECODE_EXPERT_ROW_SECONDS = 0.75, 3e-8
"""Share of the bandwidth at which experts are read, and what a token takes for each of its experts in a layer."""
_DECODE_REDUCTION_SECONDS = 5e-5
"""What a layer of tensor-parallel ranks takes longer: two reductions, and what every rank does for itself."""
_DECODE_HOST_SECONDS, _DECODE_HOST_SECONDS_PER_SEQUENCE = 2e-3, 4.3e-6
"""What the host does meanwhile. A small model's GPU waits for it."""
_PREFILL = 0.5
"""Share of operations that prompts reach."""
_PRODUCTS, _PASSES, _LOGIT_BYTES, _LAYER_SECONDS = 0.9, 17.0, 24.0, 4.7e-4
"""Of training: the products' share of operations; how often a layer's activations are read or written; the same in
bytes for a logit; and what a layer of a micro-batch takes beside, in seconds."""
_STATE_PASSES, _STATE_LAYER_SECONDS = 47.0, 1.3e-2
"""Of a layer that keeps a state: how often what it computes again is read or written, and how long a CPU takes to start
the kernels of a micro-batch."""
_DEQUANTIZING = 0.6
"""Share of the bandwidth at which weights are made of their codes."""
_ATTENTION, _BACKWARD_ATTENTION = 0.75, 0.4
"""Shares of operations that flash attention reaches forward, by its third version, and backward."""
_BACKWARD = 2.5
"""Operations of attention's backward pass over those of its forward pass."""
_EXCHANGES = 10
"""Times that the hidden states travel between tensor-parallel ranks in a layer, forward and backward."""
_WAYS = 4
"""Times that a token's copy for an expert travels between workers that share the experts: there and back, twice."""
_KEY_EXCHANGES = 3
"""Times that keys and values travel between ranks that share the context: forward, and twice backward."""
_CACHE_SECONDS_PER_BYTE, _HOST_BYTES_PER_SECOND = 5e-12, 2.5e10
"""Mapping the KV cache again, and copying weights from main memory."""
_SLICES = 16


@dataclass(frozen=True)
class Work:
    """What a step makes.

    Attributes:
        workers: GPUs.
        longest, mean: tokens of the longest response, and of one on average.
        more_forwards: forward passes beside the one that has a backward pass. A backward pass counts as one too.
        generators: GPUs that generate the responses: the workers', or those of separate engines.
        generates: whether the job does; otherwise they are the data's, or come from servers.
        overlaps: a step's responses are generated while earlier ones are trained.
    """

    workers: int
    prompts: int
    group: int
    prompt_tokens: int
    longest: int
    mean: float
    more_forwards: int = 0
    generators: int = 1
    generates: bool = True
    overlaps: bool = False

    @property
    def spread(self) -> float:
        """How the lengths of responses differ: see the module's text."""
        return self.longest / self.mean - 1

    def longer_than(self, share: float) -> float:
        """Return the share of responses that are longer than this share of the longest."""
        return float((1 - share) ** self.spread)

    @property
    def mean_square(self) -> float:
        """Mean square of a response's length."""
        return 2 * self.longest**2 / ((self.spread + 1) * (self.spread + 2))


def work_of(spec: LoRARLJobSpec) -> Work:
    """Return what a step makes with prompts at their maximum length, and responses at half of theirs on average."""
    longest = spec.rollout.max_response_tokens
    return Work(
        workers=spec.world_size,
        prompts=spec.rollout.prompts_per_step,
        group=spec.algorithm.effective_group_size,
        prompt_tokens=spec.rollout.max_prompt_tokens,
        longest=longest,
        mean=longest / 2,
        more_forwards=(spec.algorithm.effective_kl_coefficient > 0 or spec.algorithm.about.learns_from == "pairs")
        + (spec.adapter.dropout > 0)
        + (spec.algorithm.teacher_adapter is not None)
        + (spec.algorithm.correction is not None and spec.algorithm.effective_updates_per_step > 1)
        + 3 * spec.algorithm.about.critic,  # its values, and its own update
        generators=spec.engine_gpus or spec.world_size,
        generates=not spec.algorithm.about.from_data and not spec.servers,
        overlaps=spec.separate_engines is not None and spec.rollout.max_staleness > 0,
    )


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step.

    Attributes:
        moving: releasing and restoring memory.
        overlaps: steps are generated while earlier ones are trained, so that the longer of the two counts.
    """

    generation: float
    training: float
    moving: float
    overlaps: bool = False

    @property
    def total(self) -> float:
        """The whole step."""
        if self.overlaps:
            return max(self.generation, self.training)
        return self.generation + self.training + self.moving


def step_seconds(
    model: ModelSizes, plan: ExecutionPlan, work: Work, speed: Speed, separate: ExecutionPlan | None = None
) -> StepSeconds:
    """Estimate a step under a plan whose KV cache has a size. `separate`: that of engines on other GPUs, if any."""
    training = training_seconds(model, plan, work, speed)
    if not work.generates:
        return StepSeconds(0.0, training, 0.0)
    if separate is not None:
        return StepSeconds(_generation(model, separate, work, speed), training, 0.0, work.overlaps)
    return StepSeconds(_generation(model, plan, work, speed), training, _moving(model, plan))


def decode_seconds(model: ModelSizes, plan: ExecutionPlan, speed: Speed, running: float, context: float) -> float:
    """Estimate one decode step of an engine with so many sequences of so many tokens.

    The base's weights are read once, of experts those that a token was sent to, if all are as likely. Above some
    hundred sequences, multiplying with them takes longer.
    """
    matrices = (model.multiplied + model.vocabulary * model.hidden) / plan.layout.engine_ranks
    # A dense model has no experts, and all of these are 0.
    at_work, count = model.experts_at_work
    experts, active = model.of_experts / plan.layout.engine_ranks, at_work / count
    chosen = 1 - (1 - active) ** running
    read = matrices - experts * active + experts * chosen / _DECODE_EXPERTS
    reading = read * plan.compute.bytes / speed.bandwidth
    products = 2 * matrices * running / (_DECODE_PRODUCTS * speed.operations)
    keys = running * context * kv_bytes_per_token(model, plan) / (_DECODE_ATTENTION * speed.bandwidth)
    layer = _DECODE_LAYER_SECONDS + (_DECODE_REDUCTION_SECONDS if plan.layout.engine_ranks > 1 else 0.0)
    layer += running * at_work * _DECODE_EXPERT_ROW_SECONDS
    host = _DECODE_HOST_SECONDS + running * _DECODE_HOST_SECONDS_PER_SEQUENCE
    layers = max(reading, products) + _dequantizing(model, plan, speed)
    return max(layers + keys + model.layers * layer, host)


def _generation(model: ModelSizes, plan: ExecutionPlan, work: Work, speed: Speed) -> float:
    completions = work.prompts * work.group * plan.layout.engine_ranks / work.generators
    prompts = work.prompts * plan.layout.engine_ranks / work.generators
    held = sequences_held(model, plan, work.prompt_tokens, work.mean, work.group)
    at_once = min(completions, plan.engine.sequences, max(1.0, held))
    seconds = _prefill(model, plan, work, speed, prompts)
    # As long as others wait, a sequence that ends makes room for the next.
    waited = 1 - at_once / completions
    if waited > 0:
        steps = (completions - at_once) * work.mean / at_once
        context = work.prompt_tokens + work.longest / (work.spread + 2)
        seconds += steps * decode_seconds(model, plan, speed, at_once, context)
    for number in range(_SLICES):
        middle = (number + 0.5) / _SLICES
        running, context = at_once * work.longer_than(middle), work.prompt_tokens + middle * work.longest
        seconds += work.longest / _SLICES * decode_seconds(model, plan, speed, running, context)
    return seconds


def _prefill(model: ModelSizes, plan: ExecutionPlan, work: Work, speed: Speed, prompts: float) -> float:
    products = 2 * model.multiplied * work.prompt_tokens / (_PREFILL * speed.operations)
    attention = _attention(model, work.prompt_tokens**2 / 2) / (_ATTENTION * speed.operations)
    return prompts * (products + attention) / plan.layout.engine_ranks


def _attention(model: ModelSizes, pairs: float) -> float:
    """Return the operations of attention over so many pairs of query and key: two products in each layer."""
    return 4 * model.width("q_proj") * pairs * model.layers


def training_seconds(model: ModelSizes, plan: ExecutionPlan, work: Work, speed: Speed) -> float:
    """Estimate the forward and backward passes of a step on one trainer, which may be several workers.

    A token takes two operations per parameter forward, and as many backward: the base is frozen, so its weights have no
    gradients. A prompt is computed once for the completions of its group that fit into a micro-batch together.
    """
    # Trainers that have less than a group between them compute its prompt each.
    groups, parts = -(-plan.trainer.trained // work.group), _parts(plan, work)
    responses = plan.trainer.trained * work.mean
    tokens = groups * parts * work.prompt_tokens + responses
    passes = 4 + 2 * work.more_forwards
    recomputed = _recomputed(model, plan)
    operations = (passes * model.multiplied + recomputed) * tokens
    operations += passes * model.vocabulary * model.hidden * responses
    more = (passes + recomputed / model.multiplied) / 4
    traffic = _PASSES * touched_bytes(model, plan) * more * tokens + _LOGIT_BYTES * model.vocabulary * responses
    pairs = groups * parts * work.prompt_tokens**2 / 2 + plan.trainer.trained * (
        work.mean * work.prompt_tokens + work.mean_square / 2
    )
    forwards = 1 + work.more_forwards + (plan.trainer.recompute == "full")
    attentions = forwards / _ATTENTION + _BACKWARD / _BACKWARD_ATTENTION
    attention = attentions * _attention(model, pairs) / speed.operations
    products = operations / (_PRODUCTS * speed.operations)
    shared = (products + traffic / speed.bandwidth + attention) / plan.layout.trainer_workers
    micro_batches = -(-tokens // plan.trainer.micro_batch_tokens)
    own = model.layers * _LAYER_SECONDS + passes / 2 * _dequantizing(model, plan, speed)
    states = _states(model, plan, work, speed, micro_batches)
    return shared + _exchange(model, plan, speed, tokens) + micro_batches * own + states


def _states(model: ModelSizes, plan: ExecutionPlan, work: Work, speed: Speed, micro_batches: float) -> float:
    """Estimate what layers with a recurrent state take beside their products: each completion with its prompt."""
    tokens = plan.trainer.trained * (work.prompt_tokens + work.mean)
    recurrent = [state for state in model.states if state.recurrent]
    values = sum(state.again for state in recurrent)
    started = micro_batches * len(recurrent) * _STATE_LAYER_SECONDS
    return max(started, _STATE_PASSES * 4 * values * tokens / speed.bandwidth)


def _dequantizing(model: ModelSizes, plan: ExecutionPlan, speed: Speed) -> float:
    """Estimate how long it takes to make the weights of all layers of their codes, once."""
    if plan.quantization is None:
        return 0.0
    moved = plan.quantization.bytes_of(model.linear_shapes) + model.of_products * plan.compute.bytes
    return moved / (_DEQUANTIZING * speed.bandwidth)


def _recomputed(model: ModelSizes, plan: ExecutionPlan) -> float:
    """Return the operations that a token takes again."""
    if plan.trainer.recompute == "full":
        return 2.0 * model.multiplied
    if plan.trainer.recompute == "none":
        return 0.0
    # Of an MLP in a fused layer, gate and up; of a mixture, all that a token's experts compute.
    active, _ = model.experts_at_work
    projections = 3 * active if active else 2 if plan.trainer.fused_layers else 3
    return 2.0 * projections * model.hidden * model.inner * model.layers


def _parts(plan: ExecutionPlan, work: Work) -> float:
    """Return in how many micro-batches a trainer computes its share of a group, as `samples.packing` parts it.

    Where prompts are long, each part costs much. So there the responses are assumed to be as long as they may be.
    """
    response = work.longest if work.prompt_tokens >= work.longest else work.mean
    beside = max(plan.trainer.micro_batch_tokens - work.prompt_tokens, 0) / response
    if plan.trainer.micro_batch_keys is not None:
        keys = work.prompt_tokens + response
        beside = min(beside, max(plan.trainer.micro_batch_keys - work.prompt_tokens, 0) / keys)
    group = min(work.group, plan.trainer.trained)
    return -(-group // max(1, min(group, int(beside))))


def _exchange(model: ModelSizes, plan: ExecutionPlan, speed: Speed, tokens: float) -> float:
    """Estimate what ranks that share the model, its experts or the context send each other.

    With shared experts, a token's copies travel there and back, and so do their gradients.
    """
    tensor = 1 - 1 / plan.layout.trainer_ranks
    copies = (1 - 1 / plan.layout.expert_ranks) * model.active_experts / plan.layout.trainer_ranks
    ways = _WAYS + (0 if plan.trainer.recompute == "none" else _WAYS / 2)
    hidden = model.hidden * (_EXCHANGES * tensor + ways * copies) / plan.layout.context_ranks
    keys = _KEY_EXCHANGES * 2 * model.width("k_proj") / plan.layout.trainer_ranks * (1 - 1 / plan.layout.context_ranks)
    return model.layers * plan.compute.bytes * tokens * (hidden + keys) / speed.link_bandwidth


def _moving(model: ModelSizes, plan: ExecutionPlan) -> float:
    cache = plan.engine.kv_cache_bytes * _CACHE_SECONDS_PER_BYTE if "kv_cache" in plan.engine.offload else 0.0
    if "weights" not in plan.engine.offload or plan.layout.shared_base:
        return cache
    return cache + model.parameters(plan.layout.engine_ranks) * plan.compute.bytes / _HOST_BYTES_PER_SECOND
