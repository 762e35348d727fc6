"""What only rows of other systems need: kinds as a user's own would be, which nothing else imports."""
