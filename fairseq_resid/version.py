"""The version number. setup.py reads this line; the package and the run folders import it."""

__version__ = "1.1.0"
