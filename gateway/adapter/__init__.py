"""What a protocol plugs into: the port of an adapter, and the option types that adapters share. Pure."""
