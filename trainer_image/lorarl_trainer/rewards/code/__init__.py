"""The reward `code`: runs a completion's program against the row's tests, in a sandbox.

This file imports nothing, so that the sandbox's processes stay small.
"""
