"""Shared parts of the command line: parsers, errors, progress, worker pools, and fairseq's commands as subprocesses."""
