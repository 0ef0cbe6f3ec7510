"""The commands of ``pltz archive``, one file per noun."""
