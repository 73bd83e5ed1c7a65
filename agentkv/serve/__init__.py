"""An OpenAI-compatible server whose sessions keep their caches from one request to the next."""
