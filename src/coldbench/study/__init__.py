"""The study file: strict reading, its schema, and its expansion into a plan."""
