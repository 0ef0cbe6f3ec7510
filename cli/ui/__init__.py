"""What every command shares with its user: options, output, progress, tables, groups."""
