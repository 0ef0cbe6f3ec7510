"""The sources of the nightly job. `registry.py` lists them; `source.py` is their port."""
