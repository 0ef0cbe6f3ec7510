"""``pltz target``: commands about served models."""
