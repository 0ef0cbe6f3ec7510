"""Commands of ``pltz bundle``, one file each."""
