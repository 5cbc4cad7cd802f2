"""The adapters that ship with the gateway, one folder per protocol. `README.md` in this folder says how to add one.

May import nothing of the gateway.
"""
