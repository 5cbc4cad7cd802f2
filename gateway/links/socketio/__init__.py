"""One Socket.IO link, from the handshake to the packets.

May import `adapter`, `errors`, `events`, `guard`, `strict_json`.
"""
