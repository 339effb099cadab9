"""confgate's own routes."""
