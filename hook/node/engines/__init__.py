"""The container engines: the files that each engine reads, their content, and how each engine is wired."""
