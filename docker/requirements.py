"""Prints what pyproject.toml requires with one extra, one requirement a line: python requirements.py cpu

With it the image installs all packages before any code is copied.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
print("\n".join(project["dependencies"] + project["optional-dependencies"][sys.argv[1]]))
