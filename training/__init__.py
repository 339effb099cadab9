"""Offline half of confgate: learn confidence, calibrate the threshold, export the bundle (`confgate-train --help`)."""
