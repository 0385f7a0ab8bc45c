"""A discrete-event simulator that drives the production machines; one seed fixes every event."""
