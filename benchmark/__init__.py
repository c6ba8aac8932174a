"""Cases of failed, slow and healthy jobs with their truth, and a scorer that takes the answers of any tool."""
