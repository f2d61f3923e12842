"""What a model is, apart from any engine and any wire: its spec, and how that is derived from a file."""
