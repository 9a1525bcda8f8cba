"""A real one-node Kubernetes on a bare machine, as root: `python -m node up`. docs/cluster.md says how it is made."""
