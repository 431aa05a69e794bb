"""Used by every other package: files, JSON, errors, child processes, text for logs and terminals."""
