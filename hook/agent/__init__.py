"""`reassert agent`: one resident process per node that answers container starts in place of a cold start."""
