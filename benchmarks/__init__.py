"""Measurements of hdet: what it costs, and what it is worth against tuned and rate-free baselines.

``python -m benchmarks core``, ``overhead`` and ``autolr`` write raw results to
``benchmarks/results``; ``python -m benchmarks render`` makes ``docs/performance.md``,
``docs/results.md`` and ``docs/figures`` from them.
"""
