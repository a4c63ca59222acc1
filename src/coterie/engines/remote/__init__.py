"""What engines share whose clients train in other processes: the queue, the worker, the engine's side."""
