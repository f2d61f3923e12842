"""``python -m service``: the same as the ``headrace`` command."""

from service.cli import main

main()
