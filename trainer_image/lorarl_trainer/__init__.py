"""The trainer: `lorarl run` and the training loop, which runs on a laptop and in a cluster's pods."""
