"""From settings to a finished run: data, partition and model put together, rounds run, everything recorded."""
