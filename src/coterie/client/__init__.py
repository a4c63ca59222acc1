"""What happens at one client: receive, train, measure, test. Engines only decide where this runs."""
