"""What the service costs when inference costs nothing."""
