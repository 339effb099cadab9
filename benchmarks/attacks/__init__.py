"""Costly files and slow clients against a real service, and what other clients notice: `make attacks`."""
