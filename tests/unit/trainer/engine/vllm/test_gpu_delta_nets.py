"""What is left of Triton's searches among configurations, which takes no GPU."""

from __future__ import annotations

from lorarl_trainer.engine.vllm.patches.gpu_delta_nets import keep_first_configuration


def test_the_first_configuration_is_left_of_each_kernel() -> None:
    import triton

    @triton.jit
    def double(x):
        return x + x

    def searched(warps: list[int]) -> object:
        return triton.autotune(configs=[triton.Config({}, num_warps=count) for count in warps], key=[])(double)

    several, one = searched([4, 2, 8]), searched([2])
    within = triton.heuristics({"SMALL": lambda _: True})(searched([8, 1]))
    keep_first_configuration([several, one, within])
    assert [[config.num_warps for config in kernel.configs] for kernel in (several, one, within.fn)] == [[4], [2], [8]]
