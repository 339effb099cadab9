"""The service at saturation under valid and hostile requests, for as long as you like: `make soak`."""
