"""Frames computed from frames. One module per question; the modules are found by walking the package."""

import pkgutil
from importlib import import_module

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
