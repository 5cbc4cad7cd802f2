"""The port of adapters and the option types that they share. Pure.

May import `addresses`, `errors`, `events`, `strict_json`.
"""
