"""confgate's serving half: bundles in, gated answers out. Nothing here needs torch."""

import os

# ONNX Runtime's Linux wheels send telemetry unless this is set before their first import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
