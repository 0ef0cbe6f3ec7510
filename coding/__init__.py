"""Coding: sessions to coded frames and back, every frame decoded before it is acknowledged."""
