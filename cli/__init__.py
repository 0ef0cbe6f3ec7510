"""The command line: one file per command. The entry point is ``pltz.cli.main``."""
