"""Kinds that only rows of other systems need, as a user's own would be: nothing else imports them."""
