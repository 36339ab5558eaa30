"""Tables of a report: text, Markdown, LaTeX, CSV, notebooks."""
