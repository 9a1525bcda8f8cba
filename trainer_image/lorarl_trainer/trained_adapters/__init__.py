"""Trained adapters in use: evaluate, chat and merge.

They are computed by transformers and PEFT, not by the engine that trained with them. So the figures come from other
code than the training's, any PEFT adapter can be used, and a CPU needs neither Ray nor a plan of its memory.
"""
