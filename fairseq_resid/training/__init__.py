"""Training by recipe: a file of fairseq flags, run as one stock command that can be interrupted and run again."""
