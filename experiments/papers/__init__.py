"""The claims of five papers on KV caches beside what this code measures: ``pltz.experiments papers``."""
