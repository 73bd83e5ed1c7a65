"""Models in GGUF files, which llama.cpp, LM Studio and Ollama read: converted once, and kept."""
