"""Sessions: values of users to coded frames and back."""
