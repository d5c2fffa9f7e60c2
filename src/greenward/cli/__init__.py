"""Commands: they parse, call the API and print."""
