"""Scores of completions: built-in comparisons, math-verify, and users' own functions. Imports no torch.

This file imports nothing, so that the scoring processes stay small.
"""
