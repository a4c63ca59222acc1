"""A round: who takes part, what is delivered, collected, exchanged, evaluated and counted."""
