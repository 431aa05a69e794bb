"""What is made of the parsers of the commands: completion of shells, manual pages, and better messages."""
