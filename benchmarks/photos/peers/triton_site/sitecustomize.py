"""Lets PyTriton run with Python 3.11.5 and later: Triton's Python backend has an older 3.11 built in, whose locks lack
a method that the later standard library asks for. It is on the path of PyTriton's processes alone."""

import threading
from multiprocessing import resource_tracker

if not hasattr(threading.RLock(), "_recursion_count"):
    resource_tracker._resource_tracker._lock = threading._PyRLock()  # type: ignore[attr-defined]
