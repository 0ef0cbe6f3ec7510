"""Speed of the engines, and of coding from end to end."""
