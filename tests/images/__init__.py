"""Tests of image data and image models."""
