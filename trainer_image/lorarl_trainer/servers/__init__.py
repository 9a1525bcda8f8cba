"""Servers of vLLM, which the user or the run has started: they get adapters, and completions come from them by HTTP."""
