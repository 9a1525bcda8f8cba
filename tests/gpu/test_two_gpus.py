"""Two GPUs: every mixture of tensor, context and data parallelism of trainer and engine says what one GPU says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lorarl_trainer.devices.cuda import CudaDevice
from support.gradients import CASES, gradients_of_ranks
from support.in_process import Colocated, prompts, random_adapter, samples_of
from support.ranks import record, recorded_request, run_two_ranks, state_file

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has fewer than two GPUs")
NOISE = 0.02
"""What bf16 rounds differently where sums are split otherwise."""
VALUE_NOISE = 0.15
"""The same of a value's gradient by experts, whose terms cancel. One CPU is up to 0.11 off its own fp32 there."""


@pytest.fixture(scope="module", params=["qwen2-gpu", "qwen2-one-gpu"])
def alone(request, model_folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What one GPU makes of a model, and the inputs for two. Two tensor-parallel GPUs share one key-value head."""
    folder = tmp_path_factory.mktemp("two-gpus")
    (folder / "model").symlink_to(model_folder(request.param))
    worker = Colocated(folder / "model", folder, cluster__gpusPerNode=1)
    adapter = random_adapter(worker, scale=0.02)
    save_file(adapter, folder / "adapter.safetensors")
    worker.load(adapter)
    worker.sync()
    record(folder, samples_of(prompts(32), worker.generate(prompts(32))))
    update = recorded_request(folder, learning_rate=1e-3)
    results = [worker.worker.update(update)]
    (folder / "state").write_bytes(state_file(worker.worker))
    results += [worker.worker.update(update) for _ in range(2)]
    worker.close()
    torch.cuda.empty_cache()
    return folder, {"losses": [r.metrics["loss"] for r in results], "norms": [r.metrics["grad_norm"] for r in results]}


@pytest.mark.parametrize(
    ("trainer_tp", "rollout_tp", "context"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2)]
)
def test_two_gpus_say_what_one_says(
    alone: tuple[Path, dict[str, Any]], trainer_tp: int, rollout_tp: int, context: int
) -> None:
    folder, one = alone
    layout = trainer_tp, rollout_tp, context
    run_two_ranks(Path(__file__).with_name("rank_of_two.py"), folder, *layout, folder, seconds=200)
    for rank in range(2):
        report = torch.load(folder / f"report-{'-'.join(map(str, layout))}-{rank}.pt")
        print(f"\ntrainer TP {trainer_tp}, rollout TP {rollout_tp}, context of {context}, rank {rank}: {report}")
        assert max(report["differences"]) < 0.02, "of the model's own distribution, and of its five best tokens"
        assert report["handed_over"] == (32 if rank % rollout_tp == 0 else 0), (
            "only the first rank of an engine hands its completions over"
        )
        assert report["losses"] == pytest.approx(one["losses"], abs=NOISE)
        assert report["norms"] == pytest.approx(one["norms"], rel=0.1)
        assert report["resumed"] == pytest.approx(one["losses"][1], abs=NOISE), "one GPU's checkpoint goes on here"
        assert (report["shared_bytes"] > 0) == (trainer_tp == rollout_tp)
    first, second = (torch.load(folder / f"drawn-{'-'.join(map(str, layout))}-{rank}.pt") for rank in range(2))
    if rollout_tp == 2:
        assert first == second, "the ranks of an engine draw the same tokens"


Gradients = dict[str, dict[str, torch.Tensor]]
LAYERS = [name for name, case in CASES[2].items() if case.experts == 1]
EXPERTS = [name for name, case in CASES[2].items() if case.experts > 1]


@pytest.fixture(scope="module")
def of_two(request, model_folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Gradients, Gradients]:
    """The models, and the gradients of two GPUs in fp32 and bf16, in the cases that this run of pytest has chosen."""
    folder = tmp_path_factory.mktemp("gradients")
    names = [item.callspec.params["name"] for item in request.session.items if "of_two" in item.fixturenames]

    def model_of(architecture: str) -> Path:
        return model_folder(f"{architecture}-gpu")

    exact, rounded = (gradients_of_ranks(folder, model_of, names, 2, 2, precision) for precision in ("fp32", "bf16"))
    return folder, exact, rounded


@pytest.mark.parametrize("name", LAYERS)
def test_two_gpus_that_share_layers_or_tokens_have_the_gradients_of_one(of_two, name: str) -> None:
    """Each adapter's, by name: in fp32 but for how tensor cores round, in bf16 as far off as one GPU's are."""
    folder, exact_of_two, rounded_of_two = of_two
    exact, rounded = (CASES[2][name].gradients(CudaDevice(), folder, precision) for precision in ("fp32", "bf16"))
    assert exact.keys() == exact_of_two[name].keys() == rounded_of_two[name].keys()
    # KL weighs a token by 1 - exp(reference - policy): as far off as a log-probability, and few tokens weigh most.
    of_weights = (rounded["logprobs"] - exact["logprobs"]).abs().max().item() if CASES[2][name].kl_coefficient else 0.0
    for tensor, expected in exact.items():
        in_fp32, noise, found = (
            ((other[tensor] - expected).norm() / expected.norm()).item()
            for other in (exact_of_two[name], rounded, rounded_of_two[name])
        )
        print(f"{name}, {tensor}: {in_fp32:.1e} in fp32, {found:.1e} in bf16, of one GPU {noise:.1e}")
        assert in_fp32 < 5e-3
        assert found < max(2 * noise, 2e-2) + of_weights


def test_two_gpus_that_share_experts_have_the_gradients_of_one(model_folder, tmp_path: Path) -> None:
    """In bf16, which GPUs' grouped products need."""
    of_two = gradients_of_ranks(tmp_path, lambda name: model_folder(f"{name}-gpu"), EXPERTS, 2, 2, "bf16")
    for name in EXPERTS:
        one = CASES[2][name].gradients(CudaDevice(), tmp_path, "bf16")
        assert one.keys() == of_two[name].keys()
        for tensor, expected in one.items():
            found = ((of_two[name][tensor] - expected).norm() / expected.norm()).item()
            print(f"{name}, {tensor}: {found:.1e}")
            of_value = tensor.startswith("critic.") and ".experts." in tensor
            assert found < (VALUE_NOISE if of_value else NOISE), f"{name}, {tensor}"
