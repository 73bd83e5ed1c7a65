"""GGUF files, the format of llama.cpp: what they say, and a converted copy for transformers."""
