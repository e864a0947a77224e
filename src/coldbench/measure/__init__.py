"""Measuring on one machine: launcher, page cache, host facts, memory budget, runs and blocks."""
