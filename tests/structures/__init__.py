"""One file for each structure, tests/structures/NAME.py: support/structures.py describes what it may define."""
