"""Serving engines that the eviction hook is connected to: llama-server and vLLM."""
