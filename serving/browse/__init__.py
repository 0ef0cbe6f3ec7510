"""Browsing of an archive: its sessions as pages for one person on this machine."""
