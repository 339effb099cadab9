"""Metrics of scores: `detection` (OOD, misclassified), `selective` (risk), `mixed_traffic`, and `intervals`."""
