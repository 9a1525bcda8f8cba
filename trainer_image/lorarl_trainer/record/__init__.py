"""The record of a job's runs in its checkpoint store, where it outlives the pods: `<uri>/<job>/runs/<number>/`.

docs/checkpoints.md describes it for readers.
"""
