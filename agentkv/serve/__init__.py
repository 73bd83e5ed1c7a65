"""A server for clients of OpenAI and Anthropic, whose sessions keep their caches."""
