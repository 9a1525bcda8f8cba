"""On-policy distillation: the student samples, and a teacher scores each of its tokens.

R. Agarwal et al., "On-Policy Distillation of Language Models" (arXiv:2306.13649), with the reverse KL divergence as a
policy gradient, as in K. Lu and Thinking Machines Lab, "On-Policy Distillation", 2025.
Shape suffixes: P prompts of a step, G completions of each, T tokens of a completion.
"""

from __future__ import annotations

import numpy as np

from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards


class Distillation(PolicyGradient):
    """The advantages are those of tokens, see `token_advantages`. No completion is compared with another."""

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return the mean advantage of each completion's tokens, [P, G], which is its reward; 0 where it has none."""
        return np.nan_to_num(rewards_P_G).astype(np.float32)


def token_advantages(teacher_T: Floats, student_T: Floats) -> Floats:
    """Return log p(teacher) - log p(student) of each sampled token, [T], in nats: minus its share of the divergence.

    The mean over the student's own tokens is an unbiased estimate of -KL(student || teacher) per token. A token answers
    for itself alone, not for those after it: a discount of 0.
    """
    return (teacher_T - student_T).astype(np.float32)
