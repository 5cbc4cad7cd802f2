"""The port of adapters and the option types that they share. Pure."""
