"""Samples that are read from the data: answers to learn, and pairs of them. Nothing is generated."""
