"""What is replaced inside vLLM: everything, each with the reason why no door of vLLM's own serves.

vLLM's doors are used where they exist: `scheduler_cls` (scheduler.py), `worker_cls` (worker.py) and
`register_model_loader` (shared_base.py). `worker_extension_cls` only adds methods to a worker, so it replaces nothing.
A `vllm.general_plugins` entry point would run in every vLLM of the environment, also in a user's `vllm serve`, and
would patch the same names.
"""
