"""`dragoman demo`: a scripted game of Go Fish through a real gateway."""
