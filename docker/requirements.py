"""Prints what pyproject.toml requires with one extra, one requirement per line: python requirements.py cpu

The image installs all packages from this list before any code is copied, so that a change of code keeps that layer.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
print("\n".join(project["dependencies"] + project["optional-dependencies"][sys.argv[1]]))
