"""The tables of docs/results.md, made from the evaluations that are committed beside it: `make results`."""
