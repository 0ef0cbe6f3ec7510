"""The measurement of sessions coded after their neighbours."""
