"""The entry point of the ``pltz`` script. It imports nothing by itself, so that Ctrl-C ends a command quietly while everything is still loading."""


def main() -> None:
    """Run the command line of this process."""
    try:
        from pltz.cli.ui import process

        process.prepare()
        from pltz.cli.root import cli

        cli(prog_name="pltz")
    except KeyboardInterrupt:  # where click was not there yet, or no longer, to catch it
        raise SystemExit(1) from None
