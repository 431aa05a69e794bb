"""What a container controls is read in here, by processes without rights."""
