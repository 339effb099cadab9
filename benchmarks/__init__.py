"""Benchmarks that compare alternatives in one run: `make bench` for all, `python -m benchmarks.NAME` for one."""
