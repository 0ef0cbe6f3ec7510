"""The formats of files that people have, one file per maker. `registry.FORMATS` lists them."""
