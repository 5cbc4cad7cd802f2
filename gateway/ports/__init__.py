"""The sockets in the wall: protocols and frozen values that adapters, engines and executors plug into. Pure."""
