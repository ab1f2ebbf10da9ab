"""Other libraries on their own ground: one file a peer or ground, and what is kept of them."""
