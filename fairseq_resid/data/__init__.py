"""From a source to a data folder: text and images, archives, downloads."""
