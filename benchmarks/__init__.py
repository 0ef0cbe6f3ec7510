"""Benchmarks: peers, baselines, measurements and plots. Users run them through ``pltz bench``."""
