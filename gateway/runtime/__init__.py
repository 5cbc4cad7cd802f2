"""The running gateway around the pure core: sessions, calls, links, feeds, the cluster and the configuration.

May import `adapter`, `clock`, `core`, `dragoman.hidden`, `errors`, `events`, `executors`, `guard`, `links`,
`log_limit`, `settings`, `store`, `strict_json`, `traces`, `visible`.
"""
