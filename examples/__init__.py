"""Plain, single-file versions of FedAvg and of the five papers' methods, and the demo."""
