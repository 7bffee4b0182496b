"""What lies in a run folder and in a data folder, and how text files are read and written."""
