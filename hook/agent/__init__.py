"""`reassert agent`: one resident process that answers what a cold start would have to be started for."""
