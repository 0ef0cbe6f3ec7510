"""Commands of ``pltz bench``, one file each."""
