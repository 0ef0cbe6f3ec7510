"""The commands of ``pltz bundle``: the short ones in ``group``, the others one file each."""
