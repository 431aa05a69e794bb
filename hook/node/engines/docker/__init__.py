"""docker: daemon.json and the API of dockerd."""
