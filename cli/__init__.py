"""The command line: one file a command, ``pltz.cli.main`` the way in."""
