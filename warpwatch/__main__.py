"""`python -m warpwatch` is the `warpwatch` command."""

from warpwatch.cli import main

main()
