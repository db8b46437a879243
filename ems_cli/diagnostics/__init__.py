"""What the commands find out: frozen reports, without a word of terminal output."""
