"""The reward `server`: scores that a judge or a reward model gives over HTTP."""
