"""`python -m service.frontend`: the front-end process, which only a supervisor starts."""

import sys

from service.frontend.process import main

main(sys.argv[1:])
