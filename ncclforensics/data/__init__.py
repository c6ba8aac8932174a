"""What is known without any log, each row with its source."""
