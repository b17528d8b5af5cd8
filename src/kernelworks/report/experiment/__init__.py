"""How an experiment's record is shown: as bars on a terminal, as a picture and a table on a page."""
