"""The .pltz file: header, session frames and the index over them."""
