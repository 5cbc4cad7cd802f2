"""The gateway: it connects agent runtimes to one backend. `README.md` in this folder describes the structure.

May import `adapter`, `cli`, `clock`, `errors`, `events`, `executors`, `guard`, `http`, `plugins`, `runtime`,
`settings`, `store`, `traces`.
"""
