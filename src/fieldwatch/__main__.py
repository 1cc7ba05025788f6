"""``python -m fieldwatch``: the same as ``fieldwatch``."""

import sys

from fieldwatch.cli import main

sys.exit(main())
