"""Maintenance: verify, repair, collect, erase."""
