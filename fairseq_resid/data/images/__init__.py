"""Images: prepare a data folder from a binary release or image files, read it, and augment the images."""
