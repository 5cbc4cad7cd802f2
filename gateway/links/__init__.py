"""Links to runtimes: Socket.IO, REST and server-sent events."""
