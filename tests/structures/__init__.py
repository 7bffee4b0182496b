"""One file for each structure, tests/structures/NAME.py: support/structures.py describes the possible definitions."""
