"""Sessions: values of users, as plain bytes and as bundle tokens."""
