"""Tools: errors, text and files of strangers, statistics, HTTP, interruption, seeds."""
