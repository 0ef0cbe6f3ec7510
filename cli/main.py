"""The entry point of the ``pltz`` script.

It imports nothing at module level, so that Ctrl-C ends a command quietly while modules still load.
"""


def main() -> None:
    """Run the command line of this process."""
    try:
        from pltz.cli.ui import process

        process.prepare()
        from pltz.cli.root import cli

        cli(prog_name="pltz")
    except KeyboardInterrupt:  # raised before click runs or after it returned
        raise SystemExit(1) from None
