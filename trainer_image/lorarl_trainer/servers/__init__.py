"""Servers of vLLM that somebody else started: adapters go to them, and completions come from them, over HTTP."""
