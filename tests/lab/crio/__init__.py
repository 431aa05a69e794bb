"""Tests on a real CRI-O, by its path: run.sh."""
