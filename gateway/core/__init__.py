"""The decisions: pure, synchronous functions that turn inputs into a Step and effects.

May import `adapter`, `errors`, `events`, `executors`, `store`, `strict_json`, `visible`.
"""
