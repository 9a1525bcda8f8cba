"""Builders of Kubernetes objects: pure functions from a valid job to dicts."""
