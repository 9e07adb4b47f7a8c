"""where_is.py PACKAGE: prints the folder of a package."""

import importlib.util
import os
import sys

print(os.path.dirname(importlib.util.find_spec(sys.argv[1]).origin))
