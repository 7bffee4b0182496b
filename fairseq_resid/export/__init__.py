"""Trained models for other engines: CTranslate2, ONNX Runtime and Hugging Face transformers.

This package and `engine` need neither torch nor fairseq, and no module imports an engine before it is used.
"""
