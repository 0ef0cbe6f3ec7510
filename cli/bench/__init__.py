"""The commands of ``pltz bench``, one file per command."""
