"""What every other package uses: files, JSON, errors, child processes."""
