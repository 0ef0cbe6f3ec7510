"""The compiled CPU engine: C sources and the Python side that calls them."""
