"""Export trained models to other engines: CTranslate2, ONNX Runtime and Hugging Face transformers.

This package and `engine` work without torch and fairseq. Engines are imported only when they are used.
"""
