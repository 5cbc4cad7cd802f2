"""The HTTP face: everything a backend, an operator or a probe may ask over HTTP."""
