"""Serving engines: llama-server and vLLM, next to the eviction hook."""
