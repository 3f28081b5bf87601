"""``python -m cli``: the same as the command ``turnledger``."""

from cli.main import main

main()
