"""How results become a terminal page, JSON, Markdown, HTML, a notebook cell."""
