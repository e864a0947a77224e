"""One module per engine tool: its command line, and what its output means."""
