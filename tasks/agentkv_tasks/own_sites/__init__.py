"""Sites of the user's own: a file that says where they are, and what starts and checks them."""
