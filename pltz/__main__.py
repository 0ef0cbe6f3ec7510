"""`python -m pltz`: the same as the script `pltz`, where that is not on the path."""

from pltz.cli.main import main

main()
