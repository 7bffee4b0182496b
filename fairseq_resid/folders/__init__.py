"""What lies in a data folder, and whether it is whole."""
