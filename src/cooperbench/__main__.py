"""Entry point of `python -m cooperbench`."""

import sys

from cooperbench.cli import main

sys.exit(main())
