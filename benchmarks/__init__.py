"""Benchmarks: ``python -m benchmarks`` (``make bench``) measures this machine and writes docs/benchmarks.md."""
