"""Scores of completions: built-in comparisons, math-verify, and users' own functions. Runs without torch.

This file imports nothing, so that the small processes that score stay small.
"""
