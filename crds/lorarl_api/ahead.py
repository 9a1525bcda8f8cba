"""How the processes of a job's workers import torch, Megatron and vLLM ahead: before a driver asks for them.

The operator asks Ray for it in pods, the trainer outside them. docs/kuberay.md says what each setting is for.
"""

PRELOAD = "LORARL_PRELOAD"
"""Environment variable: the path of the job's manifest. If it is absent or empty, nothing is imported ahead."""
RAY_SETTINGS = {
    "RAY_preload_python_modules": "lorarl_trainer.workers.preloaded",
    # By default, Ray ends processes that were idle for a second once the job has reserved their CPUs.
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
}
"""Environment variables of a Ray whose processes import ahead."""
