"""Used by every other package: values, files, JSON, errors, child processes, text for logs and terminals."""
