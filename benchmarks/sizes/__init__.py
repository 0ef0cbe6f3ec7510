"""Sizes of pltz files and archives beside those of peers."""
