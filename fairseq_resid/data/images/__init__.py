"""Images: from the binary release or image files to a data folder, and from there to a model."""
