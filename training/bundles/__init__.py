"""Bundles: from a training run, from an ONNX file, or as the next version of a bundle. `write` puts them on disk."""
