"""Metrics of scores: `detection` (OOD, misclassified), `selective` (risk and coverage), and `intervals`."""
