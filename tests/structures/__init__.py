"""One file for each structure, tests/structures/NAME.py. support/structures.py lists what such a file can define."""
