"""The rollout side: vLLM in the trainer's process, and how a new adapter reaches it."""
