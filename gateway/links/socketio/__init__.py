"""One Socket.IO link, from the handshake to the packets."""
