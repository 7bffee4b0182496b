"""Training runs: recipes, devices, the batch plan, launching, and the files of a run folder."""
