"""What sources state that may explain a failure, one module for each kind of source."""
