"""Data preparation: from downloads, archives or files on disk to a data folder of text, images or captions."""
