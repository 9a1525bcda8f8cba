"""`lorarl serve RUN`: vLLM's server with the adapters of a run, each checked before requests reach it.

vLLM can load an adapter in place of another of the same name, but its prefix cache knows adapters by their names, so it
would reuse what the earlier one computed. A request under way would change its weights midway, too. So every
version is loaded under a name that no other ever has, and requests for the run's name are given the newest one's.
"""
