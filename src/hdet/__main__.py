"""``python -m hdet``, where the ``hdet`` script is not on the path."""

import sys

from hdet.cli import main

sys.exit(main())
