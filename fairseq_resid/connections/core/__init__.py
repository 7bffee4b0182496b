"""The machinery of all structures: places, options, the registry and the base classes."""
