"""The verdict: claims, the faults that explain them, and the doubts under which another fault would."""
