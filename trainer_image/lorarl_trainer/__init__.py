"""The trainer: the loop that runs on a laptop and in the pods of a cluster, and `lorarl run`."""
