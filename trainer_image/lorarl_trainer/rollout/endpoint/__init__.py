"""A server that speaks OpenAI's API, and records what it samples: agents are trained by its URL alone."""
