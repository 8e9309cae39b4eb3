"""Benchmarks: named workloads, timing side by side with a peer, results, plots."""
