"""Sample sessions that ship with pltz, and loaders for common formats."""

from pltz.datasets.loaders import (
    FORMATS,
    Format,
    load,
    sample_assignments,
    sample_path,
    sample_prompts,
    sample_sessions,
    sample_tenants,
)

__all__ = [
    "FORMATS",
    "Format",
    "load",
    "sample_assignments",
    "sample_path",
    "sample_prompts",
    "sample_sessions",
    "sample_tenants",
]
