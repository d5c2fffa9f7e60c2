"""What runs in the processes of the sandbox, and all that an answer inherits."""
