"""Connections to running services: eviction hooks, serving engines, the nightly job."""
