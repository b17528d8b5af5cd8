"""The page of a diagnosis, one file a section."""
