"""Benchmarks: this project's ops beside every rival that is installed."""
