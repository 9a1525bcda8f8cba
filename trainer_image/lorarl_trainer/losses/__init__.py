"""Per-token losses: pure functions of tensors. Each names the metrics that it computes."""
