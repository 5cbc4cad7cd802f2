"""`dragoman demo`: a scripted game of Go Fish through a real gateway.

May import nothing of the gateway.
"""
