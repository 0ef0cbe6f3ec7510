"""Commands of ``pltz archive``, one file each."""
