"""Presentation: one record of sections, rendered as HTML, terminal, Markdown and JSON."""
