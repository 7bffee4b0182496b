"""A self-contained HTML report on evaluated and analysed runs, to read or to send to a colleague."""
