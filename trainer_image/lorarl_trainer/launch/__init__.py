"""Turns a manifest into a session, and ends a run."""
