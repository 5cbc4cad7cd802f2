"""The webhook executor and destination: signed requests, strictly parsed responses.

May import `clock`, `dragoman.hidden`, `dragoman.webhook_secret`, `errors`, `events`, `guard`, `links`, `log_limit`,
`settings`, `strict_json`, `visible`.
"""
