"""One HTML page out of evaluation and analysis: what to look at, and to send to a colleague."""
