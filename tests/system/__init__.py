"""System tests: whole commands, documentation pages, packaging and the environment."""
