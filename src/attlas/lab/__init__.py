"""Where claims are run, stored and shown."""
