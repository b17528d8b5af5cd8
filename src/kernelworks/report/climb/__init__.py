"""A climb as it is read: on the terminal, in its worklog, as a page with plots, and one tile's journey."""
