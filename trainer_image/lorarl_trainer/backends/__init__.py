"""Trainer backends: the frozen base and the adapters that train on it."""
