"""A node that travels: packed here, brought up on a machine with GPUs and without a network. docs/gpu-cluster.md says how."""
