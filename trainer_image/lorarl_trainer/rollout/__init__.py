"""The driver's side of a rollout: completions are collected and scored."""
