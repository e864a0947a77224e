"""Reproducible cold- and warm-cache experiments on LLM inference engines."""
