"""Pages in the browser: a local server that reads runs."""
