"""Log-probabilities of given tokens from hidden states, without the logits of a whole batch in memory.

The output layer is frozen, and the loss weighs each token's log-probability with one number. So the gradient of a
log-probability by its hidden state, (W[y] - softmax(z) W) / temperature with z = W h / temperature, is computed along
with it, chunk by chunk, and kept instead of the logits: [N, H] in the model's precision instead of [N, V]. The backward
pass is one multiplication.

Shape suffixes: N tokens, C of them in a chunk, H hidden size, V vocabulary of this tensor-parallel rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from lorarl_trainer.kernels.dispatch import with_kernel
from lorarl_trainer.kernels.truncation import keep_largest, place

_ROWS_MULTIPLE = 16


def token_log_probabilities(
    hidden_N_H: torch.Tensor,
    weight_V_H: torch.Tensor,
    targets_N: torch.Tensor,
    temperature: float,
    vocabulary: int,
    group: Any,
    chunk_rows: int,
    kept_N: torch.Tensor | None = None,
    bias_V: torch.Tensor | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Return log softmax(W h / temperature)[target], [N], float32, differentiable by the hidden states.

    Args:
        hidden_N_H: hidden states before the output layer, whole on each tensor-parallel rank, and so is their gradient.
        weight_V_H: this rank's rows of the output layer's frozen weight; rows past the vocabulary are padding.
        targets_N: token ids, below `vocabulary`.
        temperature: divides the logits.
        vocabulary: number of tokens, over all ranks.
        group: the tensor-parallel ranks.
        chunk_rows: hidden states whose logits exist at a time, see `rows_of_chunk`.
        kept_N: the softmax is over so many largest logits of each token, see `truncation`; None: over all.
        bias_V: added to the logits.
        soft_cap: c, which makes logits z those of c tanh(z / c) (Gemma 2, arXiv:2408.00118, section 2); None for none.
    """
    first = dist.get_rank(group) * weight_V_H.shape[0]
    in_vocabulary = weight_V_H.detach()[: max(vocabulary - first, 0)]
    result: torch.Tensor = _TokenLogProbabilities.apply(
        hidden_N_H,
        in_vocabulary,
        targets_N - first,
        temperature,
        group if dist.get_world_size(group) > 1 else None,
        chunk_rows,
        kept_N,
        None if bias_V is None else bias_V.detach()[: len(in_vocabulary)],
        soft_cap,
    )
    return result


def rows_of_chunk(logits: int, weight_V_H: torch.Tensor) -> int:
    """Return how many hidden states have so many logits, a multiple of 16."""
    return max(logits // weight_V_H.shape[0] // _ROWS_MULTIPLE, 1) * _ROWS_MULTIPLE


class _TokenLogProbabilities(torch.autograd.Function):
    """See `token_log_probabilities`. Targets count from this rank's first token; other ranks' are out of range."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_N_H: torch.Tensor,
        weight_V_H: torch.Tensor,
        targets_N: torch.Tensor,
        temperature: float,
        group: Any,
        rows: int,
        kept_N: torch.Tensor | None,
        bias_V: torch.Tensor | None,
        soft_cap: float | None,
    ) -> torch.Tensor:
        logprobs_N = torch.empty(hidden_N_H.shape[0], dtype=torch.float32, device=hidden_N_H.device)
        gradient_N_H = torch.empty_like(hidden_N_H) if ctx.needs_input_grad[0] else None
        scale = 1 / temperature
        for start in range(0, len(logprobs_N), rows):
            chunk = slice(start, start + rows)
            hidden_C_H, targets_C = hidden_N_H[chunk], targets_N[chunk]
            logits_C_V = _product(hidden_C_H, weight_V_H.t())
            if bias_V is not None:
                logits_C_V += bias_V
            slope_C_V = None
            if soft_cap is not None:
                logits_C_V.div_(soft_cap).tanh_()
                slope_C_V = 1 - logits_C_V.square()  # before truncation puts other numbers there
                logits_C_V.mul_(soft_cap)
            if kept_N is not None:
                keep_largest(logits_C_V, kept_N[chunk], targets_C, group)
            largest_C, sum_C, of_target_C = softmax_statistics(logits_C_V, targets_C, scale)
            if group is not None:
                own_largest_C = largest_C.clone()
                dist.all_reduce(largest_C, dist.ReduceOp.MAX, group=group)
                both = torch.stack([sum_C * (own_largest_C - largest_C).exp(), of_target_C])
                dist.all_reduce(both, group=group)
                sum_C, of_target_C = both
            logprobs_N[chunk] = of_target_C - largest_C - sum_C.log()
            if gradient_N_H is not None:
                by_logits_C_V = target_minus_softmax(logits_C_V, targets_C, largest_C, sum_C, scale, hidden_C_H.dtype)
                if slope_C_V is not None:
                    by_logits_C_V = (by_logits_C_V * slope_C_V).to(hidden_C_H.dtype)
                if group is None:
                    torch.mm(by_logits_C_V, weight_V_H, out=gradient_N_H[chunk])
                else:
                    by_hidden_C_H = _product(by_logits_C_V, weight_V_H)
                    dist.all_reduce(by_hidden_C_H, group=group)
                    gradient_N_H[chunk] = by_hidden_C_H
        if gradient_N_H is not None:
            ctx.save_for_backward(gradient_N_H)
        return logprobs_N

    @staticmethod
    def backward(ctx: Any, by_logprobs_N: torch.Tensor) -> Any:
        (gradient_N_H,) = ctx.saved_tensors
        return (gradient_N_H * by_logprobs_N[:, None]).to(gradient_N_H.dtype), *[None] * 8


def _triton() -> Any:
    from lorarl_trainer.kernels import triton_softmax  # needs Triton, which a CPU has no use for

    return triton_softmax


@with_kernel(lambda: _triton().softmax_statistics)
def softmax_statistics(
    logits_C_V: torch.Tensor, targets_C: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the largest z = scale * logit, the sum of exp(z - largest), and the target's z, each [C].

    z of a target that is not in the row is 0.
    """
    z_C_V = logits_C_V * scale
    largest_C = z_C_V.amax(1)
    mine_C, column_C = place(targets_C, logits_C_V.shape[1])
    return largest_C, (z_C_V - largest_C[:, None]).exp().sum(1), z_C_V.gather(1, column_C[:, None])[:, 0] * mine_C


@with_kernel(lambda: _triton().target_minus_softmax)
def target_minus_softmax(
    logits_C_V: torch.Tensor,
    targets_C: torch.Tensor,
    largest_C: torch.Tensor,
    sum_C: torch.Tensor,
    scale: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return the gradient of log softmax(z)[target] by the logits, [C, V].

    It is scale * (one-hot target - exp(z - largest) / sum).
    """
    mine_C, column_C = place(targets_C, logits_C_V.shape[1])
    gradient_C_V = (logits_C_V * scale - largest_C[:, None]).exp() / -sum_C[:, None]
    # Before rounding to the model's precision: if a probability is near 1, the difference is what counts.
    return gradient_C_V.scatter_add_(1, column_C[:, None], mine_C[:, None].float()).mul_(scale).to(dtype)


def _product_on_gpu(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """See `_product`. The product's sums are kept as they are."""
    if left.dtype == torch.float32:
        return left @ right
    return torch.mm(left, right, out_dtype=torch.float32)


@with_kernel(lambda: _product_on_gpu)
def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply matrices of the model's precision into one of float32."""
    return (left @ right).float()
