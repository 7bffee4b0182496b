"""Captions: from a list of captions and region features of the images to a data folder, and from there to a model."""
