"""Measurements of hdet against its baselines: ratios from interleaved runs, kept as JSON.

``python -m benchmarks`` measures and writes ``benchmarks/results/core.json``; ``python -m
benchmarks render`` makes ``docs/performance.md`` from it.
"""
