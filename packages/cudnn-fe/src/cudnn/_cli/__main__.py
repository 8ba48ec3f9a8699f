"""``python -m cudnn._cli``: the command where no script of it is installed."""

from cudnn._cli import main

main()
