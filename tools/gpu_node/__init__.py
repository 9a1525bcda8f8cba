"""A node that travels: packed here, brought up on a GPU machine without a network. docs/gpu-cluster.md says how."""
