"""The routes of the Open Inference Protocol."""
