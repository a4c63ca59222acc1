"""From settings to the first round: data, partition, model and engine in place."""
