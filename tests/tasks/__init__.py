"""Tests of the criterion for translation and captioning; those of images and captions have folders of their own."""
