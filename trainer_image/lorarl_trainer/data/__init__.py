"""Rows of prompts and answers, their tokens, and the order in which a run sees them. Imports no torch."""
