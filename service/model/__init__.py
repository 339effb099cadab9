"""The bundle contract: what a model is, how images become its input, and how its outputs become decisions.

This is all of the service that `training` imports.
"""
