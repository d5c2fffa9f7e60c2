"""Public suites: one module for each format, `named` for look-up by name, `files` for where files lie."""
