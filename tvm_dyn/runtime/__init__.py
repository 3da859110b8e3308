"""What a compiled model needs while it runs: argument checks and conversion, the library, its threads."""
