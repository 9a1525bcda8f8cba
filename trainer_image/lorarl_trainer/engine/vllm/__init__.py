"""vLLM as a rollout engine inside the trainer's process. Only this package imports vLLM."""
