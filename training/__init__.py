"""Offline half of confgate: learn confidence, calibrate the threshold, export the bundle (`confgate-train --help`)."""

import service  # noqa: F401  (keeps ONNX Runtime from reporting to its maker; must come before it is imported)
