"""Serving without HTTP: loading models, decoding, batching, deciding, counting."""
