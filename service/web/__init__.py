"""HTTP: the application, its layers and its routes."""
