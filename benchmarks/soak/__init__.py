"""The service at saturation, with good and hostile requests, for as long as one likes: `make soak`."""
