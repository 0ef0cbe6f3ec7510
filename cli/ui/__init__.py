"""The user interface that all commands share: options, output, progress, tables, groups."""
